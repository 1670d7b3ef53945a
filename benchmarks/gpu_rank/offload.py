"""Offloading a rank to host memory and back, as ranks do that share their GPU with an engine: pageable, and pinned."""

from __future__ import annotations

import functools
from typing import Any

import torch

from actors.learner.asleep import Allocate, Asleep, pageable
from benchmarks.common import seconds
from benchmarks.gpu import correctness
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.machine import Machine
from benchmarks.gpu_rank.trial_rank import Layout, digest, small_model, start_rank
from cluster.planning.units import GIB

ROUNDS = 2
"""In the first round torch allocates pinned memory, which it keeps for the second."""


def pinned(num_bytes: int) -> torch.UntypedStorage:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).untyped_storage()


def figures(machine: Machine) -> list[Figure]:
    """As it is done today, and with pinned memory, for which the trial on a CPU takes other memory."""
    allocations = {"pageable": pageable, "pinned": pageable if machine.device.type == "cpu" else pinned}
    return [
        Figure(
            f"rank leaves the GPU, {name} memory",
            "s/GB",
            functools.partial(_measure, machine, allocate),
            30,
            limit_s=120,
        )
        for name, allocate in allocations.items()
    ]


def _measure(machine: Machine, allocate: Allocate) -> dict[str, Any]:
    """Exact: a checkpoint of the rank is the same before and after."""
    rank = start_rank(machine, small_model(machine), Layout())
    rank.step([[correctness.batch_of(machine)]], version=0)  # only then are there Adam's moments
    before = digest(rank)
    on_gpu = machine.device.type == "cuda"
    asleep = Asleep(machine.device, allocate=allocate) if on_gpu else Asleep(machine.device, lambda: 1 << 60)
    rounds: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        leave_s = seconds(asleep.leave)
        left, moved = machine.allocated_bytes(), asleep.num_bytes
        back_s = seconds(asleep.come_back)
        rounds.append((leave_s / moved * 1e9, back_s / moved * 1e9))
    exact = digest(rank) == before
    (first_leave, first_back), (leave, back) = rounds
    more = {
        "exact": exact,
        "back s/GB": back,
        "first s/GB": first_leave,
        "first back s/GB": first_back,
        "GB": moved / 1e9,
        "GiB left on the GPU": left / GIB,
    }
    return {"value": leave, "exact": exact, "more": more}
