"""Jobs of the API, from request to queue to driver to result. Among packages, only `serve` imports this one.

It holds no HTTP code, which is in `serve`, and no training code. A job's driver is `agent_rft.cluster.run` with a sink
that writes to the store.
"""
