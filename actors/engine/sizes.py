"""The sizes of an engine's memory, without vLLM: planning computes with them too."""

from __future__ import annotations

MAX_CPU_CACHE_BYTES = 1 << 30
GPU_MEMORY_SHARE = 0.85
MIN_BATCHED_TOKENS = 8192
"""Token budget of one engine step; a longer context raises it."""
WAIT_INSIDE = 4
"""One extra request per this many slots waits inside vLLM, to take over a free slot at once. With turns of ten tokens,
a tenth of the slots becomes free in each step, and an agent's next request takes a step or two to arrive."""


def kv_bytes(layers: int, kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Bytes of one token in the cache: a key and a value per layer."""
    return 2 * layers * kv_heads * head_dim * itemsize


def cpu_cache_bytes(max_num_seqs: int, context_length: int, token_bytes: int) -> int:
    """Bytes of an engine's key-value cache on CPUs: enough for all requests inside, up to MAX_CPU_CACHE_BYTES.

    The bound exists because vLLM writes to the whole cache at the start, which takes seconds per GiB.
    """
    return min(MAX_CPU_CACHE_BYTES, (max_num_seqs + max_num_seqs // WAIT_INSIDE) * context_length * token_bytes)


ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks for which vLLM makes slots; an adapter of another rank is padded with zeros."""
TRAINED_ADAPTERS = 4
"""Slots of an engine whose adapter is trained: the newest version, and older ones that requests still use. When all are
taken, the next version waits until the requests of the oldest have ended."""

SHARED_ADAPTERS = 8
"""Slots of an engine that jobs share: one for each of at most seven, and one for the version that comes next."""


def slot_rank(rank: int) -> int:
    """The rank of the slots for adapters of a rank of at most 512."""
    return next(size for size in ADAPTER_RANKS if size >= rank)
