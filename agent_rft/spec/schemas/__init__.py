"""JSON schemas that users write: checks of the schemas, validation of values, and simplified schemas for models.

All work has bounded time and memory. The package does not depend on jobs or operators: schemas are passed as values.
"""
