"""Memory sizes of the model's output head. This module does not import torch, because planning uses it, too."""

from __future__ import annotations

CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 256 << 20}
"""Size of a chunk's float32 logits; two such tensors exist at the same time. With a large vocabulary, a chunk needs
enough rows (100 on a CPU, 400 on a GPU), or its matmuls are limited by reading the weight."""
