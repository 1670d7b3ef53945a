"""Tool calls of conversation turns, and tool sessions at the user's server: dispatcher, sessions and their Ray actor.

This package does not depend on engines, graders or the episode loop.
"""
