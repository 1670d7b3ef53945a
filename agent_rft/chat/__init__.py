"""Rendering of messages and tools to token ids: chat templates, model families, conversation histories.

It has no torch and no training code, because engines, checks and servers use it as well.
"""
