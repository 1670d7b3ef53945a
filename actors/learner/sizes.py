"""How much a rank reserves: plain numbers, which planning reads without loading torch."""

from __future__ import annotations

BUCKET_ELEMENTS = 200_000_000
"""Of DeepSpeed's gradient buckets, which it allocates in full: never more than the model has."""


def ranks_stage(in_bfloat16: bool, zero_stage: int) -> int:
    """Without ZeRO, DeepSpeed would sum a bfloat16 model's gradients in bfloat16. Stage 1 sums them in float32."""
    return max(1, zero_stage) if in_bfloat16 else zero_stage
