"""HTTP for all routes: the app, authentication, errors, request bodies, pages and response schemas.

Nothing here knows a particular route, a job or a model.
"""
