"""The model in torch: packed micro-batches in, log-probabilities of the trained tokens out.

This package contains no losses, optimizers or processes, and no code of the training loop.
"""
