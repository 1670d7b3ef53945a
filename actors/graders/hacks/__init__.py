"""The checks of the `code_check` grader: known hacks of code tasks, found in syntax trees.

Nothing here runs the code that it checks.
"""
