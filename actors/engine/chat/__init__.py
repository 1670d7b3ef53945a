"""Chat formats of models: templates and parsers, found by a round trip, and vLLM's chat serving.

Does not depend on training or jobs.
"""
