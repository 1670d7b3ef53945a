"""Example: from Python functions to the first step of training, step by step and timed."""
