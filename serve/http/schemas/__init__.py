"""Pydantic models of all responses, by subject. Routes return them, and the OpenAPI page describes them.

A model is built from the attributes of a record of the layers below. An alias is the record's name for a field.
"""
