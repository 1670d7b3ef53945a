"""The HTTP layer that all routes share: app, authentication, errors, request bodies, pages and response schemas.

It does not depend on individual routes, jobs or models.
"""
