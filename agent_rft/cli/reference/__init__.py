"""Content of the reference pages and of `agent-rft explain`, collected from the declarations of settings, metrics, etc.

Only the exit codes are declared here. Nothing here uses a route, a job or a model.
"""
