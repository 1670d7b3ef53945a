"""What clients send and get: chat completions, responses, streams and errors, as plain data without a server."""
