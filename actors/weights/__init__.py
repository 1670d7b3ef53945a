"""Weight sync from the learner to the engines: transports and versions.

Does not depend on rollouts, tools, graders or on how an engine samples.
"""
