"""Planning of a job before anything starts: its placement, memory and context length, from its model and the nodes.

Nothing in this package imports Ray, torch, transformers or a database.
"""
