"""Wire format of chat completions, responses, streams and errors: plain data, independent of a server."""
