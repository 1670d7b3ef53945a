"""The kinds of graders, one per file, as in section 3 of the wire contract.

A kind knows its own spec and no other kind; only `multi` combines graders.
"""
