"""Checks that a job may resume a run: the job's settings and the contents of its files must match the run."""
