"""Tool calls and tool sessions: the dispatcher, the sessions, and the Ray actor that runs both.

This package does not depend on engines, graders or the episode loop.
"""
