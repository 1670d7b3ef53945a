"""Rotary positions on CPUs, also where queries have a dimension for their heads.

vLLM's kernel for CPUs counts heads by the last dimension alone, so of such queries (LFM2, latent attention) it rotates
the first head only, and by the positions of others.
"""

from __future__ import annotations

from torch import Tensor
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding


class FlatRotary(RotaryEmbedding):  # type: ignore[misc] # vLLM has no types
    """In place of vLLM's."""

    def forward_cpu(self, positions: Tensor, query: Tensor, key: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Query [T, heads * size] or [T, heads, size], key alike or None, each returned in its shape."""
        flat = None if key is None else key.flatten(1)
        rotated, turned = super().forward_cpu(positions, query.flatten(1), flat)
        return rotated.view(query.shape), None if key is None else turned.view(key.shape)


def use_flat_rotary() -> None:
    """From here on, vLLM's models of this process have it."""
    RotaryEmbedding.register_oot(FlatRotary, name="RotaryEmbedding")
