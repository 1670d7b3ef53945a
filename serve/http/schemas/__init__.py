"""The schemas of all responses, for the OpenAPI page, by subject: every key of every response and no others.

The responses themselves are built elsewhere, as plain values; a contract test checks those of the whole API.
"""
