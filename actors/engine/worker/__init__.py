"""Code for vLLM's worker processes: fixes for CPUs, and methods that an engine calls on its workers.

Only vLLM's worker processes import these modules.
"""
