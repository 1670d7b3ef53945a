"""The model in torch: from packed micro-batches to log-probabilities of the trained tokens.

No losses, optimizers or processes here, and nothing of the training loop.
"""
