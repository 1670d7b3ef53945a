"""Planning of a job before anything starts: computes placement, memory and context length for a model and nodes.

Nothing in this package imports Ray, torch, transformers or a database.
"""
