"""Sandbox of python graders: startup, the launcher outside and the worker inside.

`sandbox_start.py` runs `sandbox_launcher.py`, which forks `untrusted_runner.py` to run untrusted code, each run in a
separate sandbox. `sandbox_launcher.py`, `sandbox_worker.py` and `untrusted_process.py` are run by path with an empty
environment. They and their imports use only the standard library.
"""
