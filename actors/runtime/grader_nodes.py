"""Ray resource and label of the nodes that run only python graders (the operator's `python_grader_nodes`).

These nodes have no CPUs and must not receive secrets. Actors with secrets that need no CPUs must use the label
selector AVOID_PYTHON_GRADERS, so that Ray does not place them on these nodes.
"""

PYTHON_GRADER = "python_grader"
"""Ray resource whose amount is the maximum number of concurrent sandboxes on the node. Each grader process uses one."""
LABEL = "agent-rft/python-graders"
AVOID_PYTHON_GRADERS = {LABEL: "!true"}
"""Label selector of the nodes that do not run python graders.

All actors that need no CPUs use this selector, except python grader actors."""
