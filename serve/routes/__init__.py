"""Routers for files, jobs, graders, models and keys. They convert HTTP requests to calls to services and stores.

Routers that call a model are in `agent_rft.serve.inference`.
"""
