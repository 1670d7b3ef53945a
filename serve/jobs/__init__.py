"""Jobs of the API: from request to queue to driver to result. The top room of this package; only `serve` imports it.

No HTTP, which is `serve`'s, and no training logic: a job's driver is `agent_rft.cluster.run` with a sink that fills the
store.
"""
