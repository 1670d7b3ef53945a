"""The routers of files, jobs, graders, models and keys. They convert HTTP requests to calls of jobs and stores.

Routers that call a model are in `agent_rft.serve.inference`.
"""
