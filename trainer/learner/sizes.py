"""The sizes of a rank's memory, without torch: planning computes with them too."""

from __future__ import annotations

BUCKET_ELEMENTS = 200_000_000
"""The size of DeepSpeed's gradient buckets, which it allocates in full; at most the model's number of parameters."""


def ranks_stage(in_bfloat16: bool, zero_stage: int, offloads: bool = False) -> int:
    """The ZeRO stage, at least 1 in bfloat16: without ZeRO, DeepSpeed sums bfloat16 gradients in bfloat16.

    It `offloads` the optimizer from stage 2 on.
    """
    return max(2 if offloads else int(in_bfloat16), zero_stage)


ASLEEP_SLACK = 1 / 16
"""Share of additional host memory for what leaves a GPU, since a little more may leave the next time."""
STATE_BYTES = 12
"""Bytes of a parameter in the optimizer: its weight and Adam's two moments, in float32 whatever the model's dtype."""


def snapshot_bytes(parameters: int, *, rank: int, ranks: int, stage: int, in_bfloat16: bool) -> int:
    """Host memory that `LearnerRank.snapshot` takes on the node of `rank`, and keeps.

    Each rank copies its part of the optimizer's state, which without ZeRO is all on rank 0; rank 0 also copies the
    model as it is served. `stage` is that of `ranks_stage`. The sum over the ranks is the size of the checkpoint.
    """
    holders = ranks if stage > 0 else 1
    state = STATE_BYTES * -(-parameters // holders) if rank < holders else 0
    model = (2 if in_bfloat16 else 4) * parameters if rank == 0 else 0
    return state + model
