"""Checks of the `code_check` grader, which detect known hacks of code tasks in syntax trees.

The checks never run the code.
"""
