"""Checks that run before a job starts and report all of its problems in one list.

Nothing in this package needs a running cluster or depends on job storage. The module `offline_checks` imports neither
model libraries nor Ray.
"""
