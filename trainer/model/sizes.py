"""The sizes of the head's memory, without torch: planning computes with them too."""

from __future__ import annotations

CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 256 << 20}
"""Bytes of float32 logits per chunk; two such tensors exist at a time. With a large vocabulary a chunk still has enough
rows (100 on a CPU, 400 on a GPU) for its products to be bound by arithmetic and not by reading the weight."""
