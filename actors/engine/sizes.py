"""How much an engine reserves: plain numbers, which planning reads without loading vLLM."""

from __future__ import annotations

MAX_CPU_CACHE_BYTES = 1 << 30
GPU_MEMORY_SHARE = 0.85
MIN_BATCHED_TOKENS = 8192
"""Of one step of the engine; a longer context raises it."""
WAIT_INSIDE = 4
"""For so many slots one more request waits inside vLLM, to take a slot over at once. With turns of ten tokens, a tenth
of the slots gets free in each step, and it takes a step or two until an agent's next request is there."""


def kv_bytes(layers: int, kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Of one token in the cache: a key and a value for each layer."""
    return 2 * layers * kv_heads * head_dim * itemsize


def cpu_cache_bytes(max_num_seqs: int, context_length: int, token_bytes: int) -> int:
    """Of an engine's key-value cache on CPUs: what all slots can fill, within a bound. vLLM writes to all of it at the
    start, seconds a GiB.
    """
    return min(MAX_CPU_CACHE_BYTES, (max_num_seqs + max_num_seqs // WAIT_INSIDE) * context_length * token_bytes)
