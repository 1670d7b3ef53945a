"""Torch model that computes the log-probabilities of the trained tokens in packed micro-batches.

This package contains no losses, optimizers or processes, and no code of the training loop.
"""
