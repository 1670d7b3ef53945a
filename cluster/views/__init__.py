"""Human-readable output of runs: live table, HTML report, traces, comparisons, and regrading of recorded rollouts.

Views read runs and never change them. They do not start Ray actors, use a database or depend on the driver.
"""
