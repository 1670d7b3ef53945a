"""Rollouts: one episode, a group of them, the fleet of engines that runs them, and the worker actor.

The top room of `actors`: it may use all others. Nothing that knows the training loop, jobs or run folders.
"""
