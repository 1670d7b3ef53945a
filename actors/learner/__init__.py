"""The group of the learner's ranks as Ray processes, which the loop uses.

Nothing that knows rollouts, tools or graders: it gets sequences and computes steps.
"""
