"""The disk space and shared memory that a run needs where it writes."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent_rft.cluster.planning.placement import MANY_GPUS_SHM_BYTES, Placement, size
from agent_rft.errors import Problem
from agent_rft.spec.plan import Plan
from agent_rft.trainer.learner.sizes import STATE_BYTES
from agent_rft.trainer.loop.checkpoint import KEEP_BEST

NUM_WHOLE = 2
"""Checkpoints with the optimizer's state: the last one and the one being written. The best ones have weights only."""
SAMPLE_BYTES = 64 << 20
SAMPLE_S = 0.5
MIN_FREE_DISK_BYTES = 64 << 20
SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Free:
    """Free bytes where the run will write. `shm_bytes` is None without shared memory."""

    disk_bytes: int
    shm_bytes: int | None

    @classmethod
    def measured(cls, runs: Path) -> Free:
        shm = shutil.disk_usage(SHM).free if SHM.is_dir() else None
        return cls(shutil.disk_usage(_existing(runs)).free, shm)


def write_speed(runs: Path, checkpoint_bytes: int, now: Callable[[], float] = time.perf_counter) -> float | None:
    """Bytes a second that reach the disk of `runs`: a small file is written there, and removed; None if it cannot be.

    It is at most a sixteenth of a checkpoint, and half a second; a disk's or a network's buffers may still flatter it.
    """
    piece, wanted = os.urandom(1 << 20), min(SAMPLE_BYTES, checkpoint_bytes // 16)
    written, began = 0, now()
    try:
        with tempfile.TemporaryFile(dir=_existing(runs)) as file:
            while not written or (written < wanted and now() - began < SAMPLE_S):
                written += file.write(piece)
                file.flush()
                os.fsync(file.fileno())
    except OSError:
        return None
    return written / max(now() - began, 1e-6)


def folder_problems(runs: Path) -> list[Problem]:
    """A problem if run folders cannot be created in `runs`."""
    folder = _existing(runs)
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return []
    message = f"{folder} is " + ("not writable for this user" if folder.is_dir() else "not a folder")
    return [Problem("runs_not_writable", "--runs", message, "choose another folder with --runs")]


def space_problems(
    num_parameters: int,
    plan: Plan,
    placement: Placement,
    runs: Path,
    free: Free,
    *,
    one_node: bool,
    num_written: int = 0,
    num_copied: int = 0,
) -> list[Problem]:
    """Too little disk for checkpoints, or too little shared memory for copies of the weights.

    Disk holds the checkpoints that are kept and the one being written; `num_written` are there already, one of them
    with the optimizer's state. `num_copied` whole ones stay longer, since they are being copied elsewhere. A run that
    has no learner has neither checkpoints nor weights to transfer. Shared memory is checked with `one_node` only: that
    of other nodes is not visible here.
    """
    problems = []
    trains = placement.learner_ranks > 0
    whole = min(NUM_WHOLE, plan.steps) if trains else 0
    best = min(KEEP_BEST, math.ceil(plan.steps / plan.eval_interval), plan.steps - whole) if trains else 0
    if num_written:
        whole, best = min(whole, 1), max(0, best - (num_written - 1))
    whole += min(num_copied, max(0, plan.steps - whole - best)) if trains else 0
    checkpoints = whole + best
    per_parameter = checkpoints * placement.bytes_per_weight + whole * STATE_BYTES
    disk = num_parameters * per_parameter + MIN_FREE_DISK_BYTES
    if free.disk_bytes < disk:
        what = f"{checkpoints} checkpoint{'s' * (checkpoints > 1)}" if trains else "traces"
        message = f"{size(free.disk_bytes)} are free on the disk of {runs}, {what} may take {size(disk)}"
        problems.append(Problem("disk_full", "--runs", message, "free some space or choose another folder with --runs"))
    # One copy of the weights is in Ray's object store, and one on its way into each engine.
    shm = trains * (1 + placement.engines) * placement.bytes_per_weight * num_parameters
    shm += MANY_GPUS_SHM_BYTES if placement.engine_gpus > 1 else 0
    if one_node and (free.shm_bytes or 0) < shm:
        available = "there is no shared memory" if free.shm_bytes is None else f"{size(free.shm_bytes)} are free"
        message = f"{available} in {SHM}, copies of the weights take {size(shm)}"
        remedy = f"enlarge {SHM} (in a container: --shm-size={math.ceil(shm / 2**30)}g)"
        problems.append(Problem("no_shared_memory", "cluster", message, remedy))
    return problems


def _existing(path: Path) -> Path:
    """The path itself or its nearest parent that exists."""
    return next(folder for folder in (path, *path.resolve().parents) if folder.exists())
