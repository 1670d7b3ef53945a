"""Rotary positions on CPUs, also where queries have a dimension for their heads.

vLLM's kernel for CPUs takes each row for a token and counts its heads by the last dimension. Of such queries (LFM2,
latent attention) it rotates some heads by the positions of other tokens, and most not at all.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

_KERNEL = RotaryEmbedding.forward_cpu


def forward_cpu(
    rotary: Any, positions: Tensor, query: Tensor, key: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Query [T, heads * size] or [T, heads, size], key alike or None, each returned in its shape."""
    flat = None if key is None else key.flatten(1)
    rotated, turned = _KERNEL(rotary, positions, query.flatten(1), flat)
    return rotated.view(query.shape), None if key is None else turned.view(key.shape)


def use_flat_rotary() -> None:
    """From here on, vLLM's models of this process have it."""
    RotaryEmbedding.forward_cpu = forward_cpu
