"""Chat completions on an engine, with detection of a model's chat format and parsers of its turns.

Does not depend on training or jobs.
"""
