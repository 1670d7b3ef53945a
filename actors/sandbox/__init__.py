"""Sandbox of python graders: startup, the launcher outside and the worker inside.

`start.py` runs `launcher.py`, which forks `runner.py` to run untrusted code, each run in a separate sandbox.
`launcher.py`, `worker.py` and `run_process.py` are run by path with an empty environment. They and their imports use
only the standard library.
"""
