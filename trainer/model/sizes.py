"""How much the model's head computes at a time: plain numbers, which planning reads without loading torch."""

from __future__ import annotations

CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 256 << 20}
"""Of float32 logits; two such tensors live at once. A chunk of a large vocabulary needs rows enough (100 on a CPU, 400
on a GPU) for its products to be bound by arithmetic and not by reading the weight."""
