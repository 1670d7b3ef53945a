"""The server: the API over HTTP, the models that it serves and the command line; the top layer.

Nothing below imports it.
"""
