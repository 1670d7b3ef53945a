"""Jobs of the API: requests, the queue, drivers and results.

HTTP code is in `agent_rft.serve.http` and `agent_rft.serve.routes`. The driver of a job calls `agent_rft.cluster.run`
for the training, with a sink that writes to the server's store.
"""
