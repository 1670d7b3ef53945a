"""Memory sizes of the output head. This module does not import torch, because job planning uses it without torch."""

from __future__ import annotations

CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 256 << 20}
"""Size in bytes of one chunk's float32 logits, by device type. Two tensors of this size exist at the same time.

The size is large enough for 100 rows (CPU) or 400 rows (GPU) even if the vocabulary is large. With fewer rows, the
chunk's matmuls would spend most of their time on memory reads."""
