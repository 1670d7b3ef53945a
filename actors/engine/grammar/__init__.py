"""Grammars that constrain the decoding of a turn, the same in rollouts and in serving.

Independent of the engine: callers pass a family's call format and the schemas.
"""
