"""Content of the reference pages and of `agent-rft explain`, collected from the declarations of settings, metrics, etc.

Only the exit codes are declared in this package. The package needs no server, no job and no model.
"""
