"""Pydantic models of all responses, by subject. Routes return them, and the OpenAPI page describes them.

Models are created from records. A field is named as in the API; its alias is the name of the record's attribute.
"""
