"""The models of all responses, by subject: routes return them, and the OpenAPI page describes them.

A model is validated from a record of the layers below by its attributes; an alias is the record's name of a value.
"""
