"""One rank of the learner: its DeepSpeed engine, training step, weight buckets and checkpoints.

A rank runs in any process: tests and benchmarks use it without Ray. `agent_rft.actors.learner` manages all ranks.
"""
