"""The sizes of the head's memory, without torch: planning computes with them too."""

from __future__ import annotations

CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 256 << 20}
"""Size of a chunk's float32 logits; two such tensors exist at once. With a large vocabulary, a chunk needs enough rows
(100 on a CPU, 400 on a GPU) for its products to be bound by arithmetic and not by reading the weight."""
