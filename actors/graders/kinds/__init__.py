"""Grader kinds of the wire contract, with one module per kind, and helpers that only these modules use.

The module of a kind depends on the spec of this kind, but not on other kinds. Only `multi` combines graders.
"""
