"""Grammars that constrain the decoding of a turn. Rollouts and serving use the same grammars.

Does not depend on the engine: callers pass the call syntax of a model family, and the schemas.
"""
