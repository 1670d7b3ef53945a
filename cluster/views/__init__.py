"""Human-readable output of runs: live table, HTML report, traces, comparisons, and regrading of recorded rollouts.

Views read runs and never change them. They start no Ray actors, use no database and do not depend on the driver.
"""
