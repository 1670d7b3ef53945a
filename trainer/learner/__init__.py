"""One rank of the learner: its DeepSpeed engine, training step, weight buckets and checkpoints.

Tests and benchmarks use a rank without Ray. `agent_rft.actors.learner` manages all ranks.
"""
