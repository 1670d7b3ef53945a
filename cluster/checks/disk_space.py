"""Checks of the disk space and shared memory that a run needs."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent_rft.cluster.planning.placement import MANY_GPUS_SHM_BYTES, Placement, format_bytes
from agent_rft.errors import Problem
from agent_rft.spec.step_plan import StepPlan
from agent_rft.trainer.learner.rank_memory_sizes import STATE_BYTES
from agent_rft.trainer.loop.checkpoint import KEEP_BEST

NUM_FULL = 2
"""Maximum number of checkpoints with optimizer state: the last one and the one being written."""
SAMPLE_BYTES = 64 << 20
SAMPLE_S = 0.5
MIN_FREE_DISK_BYTES = 64 << 20
SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """Free bytes on the disk of the run folders and in shared memory. `shm_bytes` is None if /dev/shm is missing."""

    disk_bytes: int
    shm_bytes: int | None

    @classmethod
    def measure(cls, runs: Path) -> FreeSpace:
        shm = shutil.disk_usage(SHM).free if SHM.is_dir() else None
        return cls(shutil.disk_usage(_nearest_existing_folder(runs)).free, shm)


def measure_write_speed(
    runs: Path, checkpoint_bytes: int, now: Callable[[], float] = time.perf_counter
) -> float | None:
    """Measure the write speed of the disk of `runs` in bytes per second; None if no file can be written there.

    Writes a temporary file for about half a second. The result may be too high if the disk or the network buffers the
    data.
    """
    piece, target = os.urandom(1 << 20), min(SAMPLE_BYTES, checkpoint_bytes // 16)
    written, began = 0, now()
    try:
        with tempfile.TemporaryFile(dir=_nearest_existing_folder(runs)) as file:
            while not written or (written < target and now() - began < SAMPLE_S):
                written += file.write(piece)
                file.flush()
                os.fsync(file.fileno())
    except OSError:
        return None
    return written / max(now() - began, 1e-6)


def check_runs_folder(runs: Path) -> list[Problem]:
    """Return a problem if run folders cannot be created in `runs`."""
    folder = _nearest_existing_folder(runs)
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return []
    message = f"{folder} is " + ("not writable for this user" if folder.is_dir() else "not a folder")
    return [Problem("runs_not_writable", "--runs", message, "choose another folder with --runs")]


def check_space(
    num_parameters: int,
    plan: StepPlan,
    placement: Placement,
    runs: Path,
    free: FreeSpace,
    *,
    one_node: bool,
    num_written: int = 0,
    num_uploading: int = 0,
) -> list[Problem]:
    """Return problems if the disk cannot hold the checkpoints, or shared memory cannot hold the copies of the weights.

    The disk holds the retained checkpoints and the checkpoint that is being written. A run without a learner writes no
    checkpoints and transfers no weights.

    Args:
        num_parameters: Number of trained parameters.
        plan: Plan of the job, with its numbers of steps and validations.
        placement: The job's engines and learner ranks.
        runs: Folder of the run folders.
        free: Free space.
        one_node: Whether all processes run on this node. Otherwise shared memory is not checked.
        num_written: Number of existing checkpoints, one of them with optimizer state.
        num_uploading: Number of additional checkpoints with optimizer state, which stay on the disk during upload.
    """
    problems = []
    trains = placement.learner_ranks > 0
    full = min(NUM_FULL, plan.steps) if trains else 0
    best = min(KEEP_BEST, math.ceil(plan.steps / plan.eval_interval), plan.steps - full) if trains else 0
    if num_written:
        full, best = min(full, 1), max(0, best - (num_written - 1))
    full += min(num_uploading, max(0, plan.steps - full - best)) if trains else 0
    checkpoints = full + best
    per_parameter = checkpoints * placement.bytes_per_weight + full * STATE_BYTES
    disk = num_parameters * per_parameter + MIN_FREE_DISK_BYTES
    if free.disk_bytes < disk:
        content = f"{checkpoints} checkpoint{'s' * (checkpoints > 1)}" if trains else "traces"
        message = (
            f"{format_bytes(free.disk_bytes)} is free on the disk of {runs}, but {content} "
            f"may take {format_bytes(disk)}"
        )
        problems.append(Problem("disk_full", "--runs", message, "free some space or choose another folder with --runs"))
    # One copy of the weights is in Ray's object store, and one on its way into each engine.
    shm = trains * (1 + placement.engines) * placement.bytes_per_weight * num_parameters
    shm += MANY_GPUS_SHM_BYTES if placement.engine_gpus > 1 else 0
    if one_node and (free.shm_bytes or 0) < shm:
        available = "no shared memory exists" if free.shm_bytes is None else f"{format_bytes(free.shm_bytes)} is free"
        message = f"{available} in {SHM}, but copies of the weights take {format_bytes(shm)}"
        fix = f"enlarge {SHM} (in a container: --shm-size={math.ceil(shm / 2**30)}g)"
        problems.append(Problem("small_shared_memory", "cluster", message, fix))
    return problems


def _nearest_existing_folder(path: Path) -> Path:
    """Return the path if it exists, else its nearest existing parent."""
    return next(folder for folder in (path, *path.resolve().parents) if folder.exists())
