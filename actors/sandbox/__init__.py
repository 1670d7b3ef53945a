"""The sandbox in which python graders run: how it is started, the launcher outside and the worker inside.

`launcher.py` and `worker.py` are run by path with an empty environment, so they import the standard library only.
"""
