"""What people see of a run: the live table, the HTML report, traces, and grades of recorded rollouts by a new grader.

Views read runs and never change one. They start no Ray actor, use no database, and know nothing of the driver.
"""
