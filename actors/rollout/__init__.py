"""Rollouts: episodes, groups of rollouts, the fleet of engines that runs them, and the worker actor.

The top package of `actors`: it may import all others, but nothing of the training loop, jobs or run folders.
"""
