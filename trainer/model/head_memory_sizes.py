"""Memory sizes of the output head. This module does not import torch, because job planning uses it without torch."""

from __future__ import annotations

CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 256 << 20}
"""Size of a chunk's float32 logits; two such tensors exist at the same time. Even with a large vocabulary, a chunk must
have enough rows (100 on a CPU, 400 on a GPU). With fewer, its matmuls spend most of their time on memory reads."""
