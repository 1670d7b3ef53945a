"""Rollouts: single rollouts (episodes), groups of rollouts, the fleet of engines, and the worker actor of an engine.

This package may import all other packages of `actors`, but nothing from the training loop, job runs or run folders.
"""
