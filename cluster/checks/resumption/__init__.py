"""Checks that a job may resume in a run folder: its its settings and file contents must match the run."""
