"""Nodes that are for python graders only (the operator's `python_grader_nodes`), in Ray's terms.

They have the resource PYTHON_GRADER, no cores, and the label that ELSEWHERE avoids: Ray may place actors that need no
cores on any node, and ours have secrets among their arguments.
"""

PYTHON_GRADER = "python_grader"
"""Its amount is how many sandboxes a grader may have there at a time. Each process of graders takes one."""
LABEL = "agent-rft/python-graders"
ELSEWHERE = {LABEL: "!true"}
"""The label selector of all actors that need no cores, except those of python graders."""
