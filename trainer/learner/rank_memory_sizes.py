"""Memory sizes of a learner rank. This module does not import torch, because job planning uses it without torch."""

from __future__ import annotations

BUCKET_ELEMENTS = 200_000_000
"""Maximum number of elements in a gradient bucket."""


def effective_zero_stage(in_bfloat16: bool, zero_stage: int, offloads: bool = False) -> int:
    """Return `zero_stage`, but at least 1 in bfloat16, and at least 2 if the rank `offloads` its optimizer.

    Without ZeRO, DeepSpeed sums bfloat16 gradients in bfloat16. DeepSpeed supports offload only from stage 2 on.
    """
    return max(2 if offloads else int(in_bfloat16), zero_stage)


OFFLOAD_SLACK = 1 / 16
"""Extra host memory for CPU offload, as a fraction of the current need. The next offload may need slightly more."""
STATE_BYTES = 12
"""Optimizer bytes per parameter: the weight and Adam's two moments, in float32 whatever the model's dtype."""


def snapshot_bytes(parameters: int, *, rank: int, ranks: int, stage: int, in_bfloat16: bool) -> int:
    """Return the bytes of host memory that `LearnerRank.snapshot` allocates and retains on the node of `rank`.

    Each rank copies its part of the optimizer's state; without ZeRO, rank 0 copies the full state. In addition, rank 0
    copies the model for serving. `stage` is the result of `effective_zero_stage`. The sum over the ranks is the size of
    the checkpoint.
    """
    holders = ranks if stage > 0 else 1
    state = STATE_BYTES * -(-parameters // holders) if rank < holders else 0
    model = (2 if in_bfloat16 else 4) * parameters if rank == 0 else 0
    return state + model
