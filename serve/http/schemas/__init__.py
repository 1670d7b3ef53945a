"""Pydantic models of all responses, by subject. Routes return them, and the OpenAPI page describes them.

A model is built from the attributes of a record. If a field's name differs from the attribute's name, the attribute's
name is the field's alias.
"""
