"""The learner's ranks as a group of Ray processes, which the training loop uses.

Does not depend on rollouts, tools or graders: it receives sequences and computes steps.
"""
