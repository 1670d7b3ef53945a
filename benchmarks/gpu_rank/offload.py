"""Offloading a rank to kept host memory and back, as ranks do that share their GPU: pageable, and page-locked."""

from __future__ import annotations

import functools
from typing import Any

from agent_rft.cluster.planning.memory_estimates import GIB
from agent_rft.trainer.learner.host_buffer import HostBuffer, LockPages, lock_pages_for_cuda
from agent_rft.trainer.learner.memory_offload import CpuOffload, DeviceTensors, free_gpu_bytes
from agent_rft.trainer.learner.rank_memory_sizes import OFFLOAD_SLACK
from benchmarks.common import seconds
from benchmarks.gpu import correctness
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.machine import Machine
from benchmarks.gpu_rank.trial_rank import Layout, digest, small_model, start_rank

ROUNDS = 2
"""In the first round the tensors are searched for, and the memory is allocated and page-locked."""


def figures(machine: Machine) -> list[Figure]:
    """Pageable memory, and page-locked memory as the rank uses it; the trial on a CPU has only pageable memory."""
    locks = {"pageable": None, "pinned": lock_pages_for_cuda if machine.device.type == "cuda" else None}
    return [
        Figure(
            f"rank leaves the GPU, {name} memory",
            "s/GB",
            functools.partial(_measure, machine, lock_pages),
            30,
            limit_s=120,
        )
        for name, lock_pages in locks.items()
    ]


def _measure(machine: Machine, lock_pages: LockPages | None) -> dict[str, Any]:
    """Exact: a checkpoint of the rank is the same before and after."""
    rank = start_rank(machine, small_model(machine), Layout())
    rank.step([[correctness.batch_of(machine)]], version=0)  # only then are there Adam's moments
    before = digest(rank)
    buffer, on_gpu = HostBuffer(lock_pages, OFFLOAD_SLACK), machine.device.type == "cuda"
    free, allocated = (free_gpu_bytes, machine.allocated_bytes) if on_gpu else (_many, _many)
    tensors = DeviceTensors(machine.device, allocated)
    search_s, known_s = seconds(tensors.find_storages), seconds(tensors.find_storages)
    asleep = CpuOffload(machine.device, buffer, free, allocated_bytes=allocated)
    rounds: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        leave_s = seconds(asleep.offload)
        left, moved = machine.allocated_bytes(), asleep.num_bytes
        back_s = seconds(asleep.reload)
        rounds.append((leave_s / moved * 1e9, back_s / moved * 1e9))
    exact = digest(rank) == before
    (first_leave, first_back), (leave, back) = rounds
    more = {
        "exact": exact,
        "back s/GB": back,
        "first s/GB": first_leave,
        "first back s/GB": first_back,
        "GB": moved / 1e9,
        "search s": search_s,
        "known search s": known_s,
        "GiB left on the GPU": left / GIB,
    }
    return {"value": leave, "exact": exact, "more": more}


def _many() -> int:
    """Return the bytes of a CPU's memory that are free, or allocated, in the trial."""
    return 1 << 60
