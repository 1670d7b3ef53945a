"""The routers of files, jobs, graders and models: they translate between the wire and the layers below.

The routers that call a model are in `agent_rft.serve.inference`.
"""
