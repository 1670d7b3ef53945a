"""Chat completions on an engine. Detects a model's chat format and parses the model's turns.

This package does not depend on training or jobs.
"""
