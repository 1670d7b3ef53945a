"""Projects that `agent-rft init` writes: built from the user's functions, API or CSV file, or copied from an example.

The user's functions are never called. A project is written completely or not at all.
"""

PORT = 8700
"""Default port of a project's server."""
