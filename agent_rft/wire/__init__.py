"""Wire formats of the API: chat completions, responses, streams and errors.

The package does not depend on a server.
"""
