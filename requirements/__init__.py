"""Pinned packages: lists with versions and file hashes, and tools that write and describe these lists.

This package imports no code of agent-rft, and it is not part of a wheel.
"""
