"""Memory sizes of an engine. Does not import vLLM, because the planner uses this module too."""

from __future__ import annotations

MAX_CPU_CACHE_BYTES = 1 << 30
GPU_MEMORY_SHARE = 0.85
BATCHED_TOKENS = 8192
"""Token budget of one engine step, unless `max_batched_tokens` must return more."""
SLOTS_PER_WAITING_REQUEST = 4
"""Ratio of an engine's slots to the requests that may wait inside vLLM."""


def max_batched_tokens(context_length: int, max_num_seqs: int, *, on_gpu: bool) -> int:
    """Return the token budget of one engine step; vLLM's memory for activations is proportional to this budget.

    On GPUs, vLLM computes longer prompts in chunks. The other sequences sample between the chunks, and the budget needs
    to be only as large as `max_num_seqs`. On CPUs, prompts are not divided, so the budget is at least the context.
    """
    return max(BATCHED_TOKENS, max_num_seqs if on_gpu else context_length)


def kv_bytes(layers: int, kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Return the bytes of the key-value cache for one token: a key and a value in each layer."""
    return 2 * layers * kv_heads * head_dim * itemsize


def cpu_cache_bytes(max_num_seqs: int, context_length: int, token_bytes: int) -> int:
    """Return the size in bytes of the key-value cache of an engine on CPUs.

    The cache fits all running and waiting requests at full length, up to MAX_CPU_CACHE_BYTES. The maximum is necessary
    because vLLM writes to the entire cache at the start, which takes seconds per GiB.
    """
    return min(
        MAX_CPU_CACHE_BYTES, (max_num_seqs + max_num_seqs // SLOTS_PER_WAITING_REQUEST) * context_length * token_bytes
    )


ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM supports for adapter slots; an adapter of another rank is padded with zeros."""
TRAINED_ADAPTERS = 4
"""Number of adapter slots in an engine that serves the adapter of a training job.

The newest version of the adapter takes one slot, and each older version that is still in use takes another slot. When
all slots are taken, the next version waits until the requests of the oldest version have ended."""

SHARED_ADAPTERS = 8
"""Adapter slots of a shared engine: one slot for each of at most seven jobs, and one slot for loading a new version."""


def adapter_slot_rank(rank: int) -> int:
    """Return the smallest rank in ADAPTER_RANKS that is at least `rank`. The maximum of `rank` is 512."""
    return next(size for size in ADAPTER_RANKS if size >= rank)
