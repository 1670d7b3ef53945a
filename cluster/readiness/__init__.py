"""Whether a job is worth training: what a model's draws of its rows say, before the first step.

Pure functions of rows and graded rollouts. Nothing here samples, grades, prints or knows a file.
"""
