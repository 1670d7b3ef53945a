"""Torch model that computes the log-probabilities of the trained tokens in packed micro-batches.

This package contains no losses, optimizers, processes or training-loop code.
"""
