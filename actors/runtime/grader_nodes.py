"""Ray resource and label of the nodes that run only python graders (the operator's `python_grader_nodes`).

These nodes have the Ray resource PYTHON_GRADER and no CPUs. Ray may place an actor that needs no CPUs on any node. Such
actors must therefore use the label selector AVOID_PYTHON_GRADERS: their arguments contain secrets, which must not reach
these nodes.
"""

PYTHON_GRADER = "python_grader"
"""Ray resource whose amount is the maximum number of concurrent sandboxes on the node. Each grader process uses one."""
LABEL = "agent-rft/python-graders"
AVOID_PYTHON_GRADERS = {LABEL: "!true"}
"""Label selector of all actors that need no CPUs, except python grader actors."""
