"""The learner of the training loop: a group of ranks, which are Ray processes.

This package does not depend on rollouts, tools or graders: it receives sequences and computes steps.
"""
