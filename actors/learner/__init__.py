"""The learner: one DeepSpeed rank, and the group of ranks that the loop uses.

Nothing that knows rollouts, tools or graders: it gets sequences and computes steps.
"""
