"""Readiness check, which uses rollouts of the base model to judge whether a job is worth training.

The functions in this package compute their results only from rows and graded rollouts. They do not sample, grade, print
or access files.
"""
