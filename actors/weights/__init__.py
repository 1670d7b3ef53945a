"""Weight sync from the learner to the engines: layout of buckets, transports and versions.

Nothing that knows rollouts, tools, graders or how an engine samples.
"""
