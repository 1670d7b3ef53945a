"""Checks of the `code_check` grader: detection of known hacks of code tasks in syntax trees.

The checks never run the code.
"""
