"""The sizes of a rank's memory, without torch: planning computes with them too."""

from __future__ import annotations

BUCKET_ELEMENTS = 200_000_000
"""The size of DeepSpeed's gradient buckets, which it allocates in full; at most the model's number of parameters."""


def ranks_stage(in_bfloat16: bool, zero_stage: int) -> int:
    """The ZeRO stage, at least 1 in bfloat16: without ZeRO, DeepSpeed sums bfloat16 gradients in bfloat16."""
    return max(1, zero_stage) if in_bfloat16 else zero_stage
