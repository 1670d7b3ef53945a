"""Ray resource and label of the nodes that run only python graders (the operator's `python_grader_nodes`).

These nodes have no CPUs and must not receive secrets. If an actor has secrets and needs no CPUs, it must use the label
selector AVOID_PYTHON_GRADERS, so that Ray does not place the actor on these nodes.
"""

PYTHON_GRADER = "python_grader"
"""Ray resource that limits the number of concurrent sandboxes on a node. Each grader process takes 1 of its units."""
LABEL = "agent-rft/python-graders"
AVOID_PYTHON_GRADERS = {LABEL: "!true"}
"""Label selector of the nodes that do not run python graders.

All actors that need no CPUs use this selector, except python grader actors."""
