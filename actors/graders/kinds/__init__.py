"""Grader kinds of the wire contract, one module each, and the helpers that only they use.

A kind depends on its own spec and on no other kind; only `multi` combines graders.
"""
