"""The model in torch: packed micro-batches in, log-probabilities of the trained tokens out.

Contains no losses, no optimizers, no processes and nothing of the training loop.
"""
