"""Code that vLLM's worker processes load: fixes for CPUs, and methods that an engine calls on its workers.

Nothing else runs in or imports from these modules.
"""
