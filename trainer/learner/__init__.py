"""One rank of the learner: its DeepSpeed engine, the step, the weights that it sends, and its checkpoints.

It runs in any process: tests and benchmarks use it without Ray. `agent_rft.actors.learner` has the group of ranks.
"""
