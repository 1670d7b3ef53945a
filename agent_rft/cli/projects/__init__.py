"""Projects that `agent-rft init` writes: from the user's functions, API or examples, or copied from an example.

No function of the user is called here, and a project is written completely or not at all.
"""

PORT = 8700
"""Default port of a project's server."""
