"""Sandbox for Python graders. A launcher outside the sandbox starts a worker inside it.

`sandbox_start.py` runs `sandbox_launcher.py`, which forks `untrusted_runner.py`. The runner starts a separate sandbox
for each run of untrusted code. `sandbox_launcher.py`, `sandbox_worker.py` and `untrusted_process.py` are run by path
with an empty environment. They and their imports use only the standard library.
"""
