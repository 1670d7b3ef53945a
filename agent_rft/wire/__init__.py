"""Chat completions, responses, streams and errors as clients send and get them: plain data without a server."""
