"""Weight sync from the learner to the engines: transports and versions.

This package does not depend on rollouts, tools or graders, or on how an engine samples.
"""
