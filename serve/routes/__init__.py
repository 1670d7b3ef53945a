"""The routers of files, jobs, graders, models and keys, which translate between HTTP and the layers below.

Routers that call a model are in `agent_rft.serve.inference`.
"""
