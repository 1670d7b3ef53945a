"""The kinds of graders of the wire contract, one per file, and what only they use.

A kind knows its own spec and no other kind; only `multi` combines graders.
"""
