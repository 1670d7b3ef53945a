"""Conversion of dataset rows to tasks and of rollouts to JSON, and the ownership of run folders.

This package imports neither torch nor training code, because engines and run folders also use these formats.
"""
