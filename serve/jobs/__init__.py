"""Jobs of the API: requests, the queue, drivers and results.

This package contains no HTTP code, which is in `agent_rft.serve.http` and `agent_rft.serve.routes`, and no training
code. The driver of a job calls `agent_rft.cluster.run`, with a sink that writes to the server's store.
"""
