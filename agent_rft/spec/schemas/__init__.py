"""JSON schemas that users write: their form, values that are checked against them, and what models read of them.

All work on them is bounded. Nothing of jobs or operators here: schemas come in as values.
"""
