"""Tool calls of a turn, and a rollout's session at the user's server: dispatcher, sessions, and their actor.

Nothing that knows engines, graders or the episode loop.
"""
