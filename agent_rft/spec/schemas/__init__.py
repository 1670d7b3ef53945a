"""JSON schemas that users write: checks of the schemas, validation of values, and simplified schemas for models.

Time and memory of all operations are bounded. The package does not depend on jobs or operators.
"""
