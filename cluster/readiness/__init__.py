"""Readiness check: judges from rollouts of the base model whether a job is worth training, before the first step.

Pure functions of rows and graded rollouts. This package does not sample, grade, print or access files.
"""
