"""What `agent-rft init` writes: a project from the user's functions, API or examples, or a copy of an example.

No function of the user is called here, and a project that cannot be written completely is not written.
"""

PORT = 8700
"""The port of a project's server if the user names no other."""
