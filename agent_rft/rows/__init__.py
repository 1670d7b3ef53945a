"""Dataset rows as tasks, rollouts as JSON, and the ownership of run folders.

The package depends on neither torch nor training logic, because engines and run folders use these formats too.
"""
