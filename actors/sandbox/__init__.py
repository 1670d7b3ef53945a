"""The sandbox in which python graders run: how it is started, the launcher outside and the worker inside.

`start.py` runs `launcher.py`, which forks `runner.py` for the runs of untrusted code, in sandboxes of their own.
`launcher.py`, `worker.py` and `run_process.py` are run by path with an empty environment: they and what they import use
the standard library only.
"""
