"""From a dataset row to a task to tokens, and from rollouts to JSON and back.

No torch and no training logic here: engines and run folders use these formats as well.
"""
