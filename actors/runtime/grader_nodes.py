"""Ray resource and label of the nodes that run only python graders (the operator's `python_grader_nodes`).

These nodes have the resource PYTHON_GRADER and no CPUs. Actors that need no CPUs must avoid them with ELSEWHERE: Ray
may place such actors on any node, and their arguments contain secrets.
"""

PYTHON_GRADER = "python_grader"
"""Ray resource whose amount is the maximum number of concurrent sandboxes on the node. Each grader process uses one."""
LABEL = "agent-rft/python-graders"
AVOID_PYTHON_GRADERS = {LABEL: "!true"}
"""Label selector of all actors that need no CPUs, except python grader actors."""
