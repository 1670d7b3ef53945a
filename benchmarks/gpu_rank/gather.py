"""Gathering the rank's weights into the buckets of a weight update, which copies them to host memory."""

from __future__ import annotations

import functools
from typing import Any

from agent_rft.trainer.learner.weight_buckets import MAX_BUCKET_BYTES
from benchmarks.gpu.copies import AIM, ANCHOR
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.shapes import QWEN3, TINY
from benchmarks.gpu_rank.trial_rank import Layout, model_folder, start_rank

LAYOUTS = (Layout(zero_stage=1), Layout(zero_stage=3))


def figures(machine: Machine) -> list[Figure]:
    """The weights of 1.7B by ZeRO's stage."""
    return [
        Figure(
            f"rank gathers the weights of 1.7B, {layout}",
            "s/GB",
            functools.partial(_measure, machine, layout),
            30,
            AIM,
            ANCHOR,
            limit_s=120,
        )
        for layout in LAYOUTS
    ]


def _measure(machine: Machine, layout: Layout) -> dict[str, Any]:
    rank = start_rank(machine, model_folder(machine, TINY if machine.tiny else QWEN3["1.7B"]), layout)
    plan = rank.bucket_plan(MAX_BUCKET_BYTES)
    size = 0

    def gather() -> None:
        nonlocal size
        buckets = (rank.gather_bucket(index) for index in range(len(plan)))
        size = sum(bucket.nbytes for bucket in buckets if bucket is not None)

    times = machine.times(gather, warmups=1, runs=5)
    return {
        "value": times.total / size * 1e9,
        "runs": times.runs,
        "more": {"buckets": len(plan), "GB": size / 1e9},
    }
