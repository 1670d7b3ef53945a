"""Snapshot, write, load and resume: the state that was loaded, and the next step, are equal to the last bit."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from agent_rft.trainer.model.micro_batches import MicroBatch
from benchmarks.common import seconds
from benchmarks.gpu import correctness
from benchmarks.gpu.figures import Figure, NotMeasured
from benchmarks.gpu.machine import Machine
from benchmarks.gpu_rank.trial_rank import Layout, digest, digest_of, size_of, small_model, start_rank

LAYOUTS = (Layout(zero_stage=1), Layout(zero_stage=3))
REPEATS = "a step repeats itself"
"""Whether the same step from the same state gives the same weights, to the last bit."""


def figures(machine: Machine) -> list[Figure]:
    """Each layout with the kernels of training, then with deterministic ones."""
    return [
        Figure(
            _name(layout, deterministic),
            "s/GB",
            functools.partial(_measure, machine, layout, deterministic),
            40,
            limit_s=150,
        )
        for deterministic in (False, True)
        for layout in LAYOUTS
    ]


def _name(layout: Layout, deterministic: bool) -> str:
    return f"snapshot for a checkpoint, {layout}{', deterministic kernels' if deterministic else ''}"


def _measure(machine: Machine, layout: Layout, deterministic: bool) -> dict[str, Any]:
    """Exact: what is loaded equals what was written, and so does the next step if the kernels repeat one at all."""
    if deterministic:
        before = machine.results.lines.get(_name(layout, False), {}).get("more", {})
        if before.get(REPEATS) and not machine.tiny:
            raise NotMeasured("the kernels of training are deterministic already")
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when the first matrix product runs
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    try:
        return _resume(machine, layout, correctness.batch_of(machine))
    finally:
        torch.use_deterministic_algorithms(False)


def _resume(machine: Machine, layout: Layout, batch: MicroBatch) -> dict[str, Any]:
    model = small_model(machine)
    first = start_rank(machine, model, layout)
    first.step([[batch]], version=0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first_s = seconds(first.snapshot)  # allocates the memory that the next snapshots use
        snapshot_s = seconds(first.snapshot)
        write_s = seconds(lambda: first.write_snapshot(folder))
        size = size_of(folder) / 1e9
        written = digest_of(folder)
        first.step([[batch]], version=1)
        expected = digest(first)
        first.load(folder)
        first.step([[batch]], version=1)
        repeats = digest(first) == expected
        second = start_rank(machine, model, layout)
        load_s = seconds(lambda: second.load(folder))
    same_state = digest(second) == written
    second.step([[batch]], version=1)
    same_step = digest(second) == expected
    more = {
        "same state": same_state,
        "same next step": same_step,
        REPEATS: repeats,
        "GB": size,
        "first s/GB": first_s / size,
        "write s/GB": write_s / size,
        "load s/GB": load_s / size,
    }
    return {"value": snapshot_s / size, "exact": same_state and (same_step or not repeats), "more": more}
