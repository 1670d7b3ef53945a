"""Checks of a job before it starts; they report all problems in one list.

Nothing in this package needs a running cluster or depends on job storage. `static` imports neither model libraries nor
Ray.
"""
