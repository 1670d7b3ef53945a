"""Finds everything that can be wrong with a job before it starts, as one list of problems.

Nothing in here needs a running cluster or knows how jobs are stored; `static` runs without model libraries and Ray.
"""
