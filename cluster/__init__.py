"""From a job file or an API request to a finished run: planning, preflight, the driver, records, stores and views.

Imports actors and trainer, never serve.
"""
