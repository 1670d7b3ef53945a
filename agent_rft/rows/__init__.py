"""From dataset rows to tasks, and from rollouts to JSON and back.

No torch and no training logic here: engines and run folders use these formats as well.
"""
