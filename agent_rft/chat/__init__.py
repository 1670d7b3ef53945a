"""Rendering of messages and tools to token ids: chat templates, model families, conversation histories.

Does not import torch or training code, because engines, job checks and servers use this package too.
"""
