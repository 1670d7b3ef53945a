"""Weight sync from the learner to the engines: transports and versions.

Nothing that knows rollouts, tools, graders or how an engine samples.
"""
