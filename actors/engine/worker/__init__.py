"""What vLLM's own worker processes load: repairs of its parts for CPUs, and what an engine asks of its workers.

Nothing that runs outside of those processes.
"""
