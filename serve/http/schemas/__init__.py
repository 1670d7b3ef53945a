"""Pydantic models of all responses. Routes return them, and the OpenAPI page describes them.

A model is created from a record, such as a `JobRecord`. A field has the name that the API uses. If the record's
attribute has a different name, the attribute's name is the field's alias.
"""
