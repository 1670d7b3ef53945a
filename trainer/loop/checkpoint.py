"""Checkpoints: written beside and renamed, and renamed before they are removed, so a folder with a name is whole; the
best three and the last are kept.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trainer.errors import InvalidJob, Problem

KEEP_BEST = 3
_STATE = "loop.json"


@dataclass(frozen=True, slots=True)
class LoopState:
    """All numbers that the loop owns. `rows_done`: ids of the rows of `epoch` that were trained or passed over.
    `metrics`: what is told of the step once its checkpoint is whole; a run that is killed just before tells it when it
    is resumed.
    """

    step: int
    version: int
    epoch: int
    rows_done: list[str]
    trained_tokens: int
    valid_reward: float | None
    job_digest: str
    metrics: dict[str, float] = field(default_factory=dict)


class Checkpoints:
    """The `checkpoints` folder of a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*.tmp"):
            shutil.rmtree(leftover)

    async def save(self, state: LoopState, write: Callable[[Path], Awaitable[None]]) -> Path:
        """Let `write` fill a folder, then make it count.

        Raises:
            OSError: the disk is full or read-only; earlier checkpoints are untouched.
        """
        final = self._folder / f"step-{state.step:06d}"
        temporary = final.with_suffix(".tmp")
        temporary.mkdir()
        try:
            await write(temporary)
            (temporary / _STATE).write_text(json.dumps(asdict(state), indent=1))
            _sync_to_disk(temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if final.exists():
            _remove(final)
        temporary.rename(final)
        self._prune()
        return final

    def all(self) -> list[tuple[Path, LoopState]]:
        """Whole checkpoints, oldest first; also while another thread saves one."""
        found = []
        for path in sorted(path for path in self._folder.glob("step-*") if path.suffix != ".tmp"):
            with suppress(FileNotFoundError):  # removed meanwhile, for there are better ones
                found.append((path, LoopState(**json.loads((path / _STATE).read_text()))))
        return found

    def latest(self) -> tuple[Path, LoopState] | None:
        return next(reversed(self.all()), None)

    def _prune(self) -> None:
        kept = self.all()
        ranked = sorted(kept, key=lambda entry: entry[1].valid_reward if entry[1].valid_reward is not None else -1e30)
        best = {path for path, _ in ranked[-KEEP_BEST:]}
        for path, _ in kept[:-1]:
            if path not in best:
                _remove(path)


def _remove(checkpoint: Path) -> None:
    """Whole or gone, also for who reads meanwhile and for a process that is killed within."""
    shutil.rmtree(checkpoint.rename(checkpoint.with_name(f"{checkpoint.name}-removed.tmp")))


def num_bytes(folder: Path) -> int:
    """What a checkpoint takes on disk."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def check_same_job(state: LoopState, job_digest: str) -> None:
    """A checkpoint goes on only with the job that wrote it.

    Raises:
        InvalidJob: the job has changed since.
    """
    if state.job_digest != job_digest:
        remedy = "resume with the job file that began the run, or start a new run with `model` set to the checkpoint"
        problem = Problem("job_changed", "job", "differs from the one that wrote the checkpoint", remedy)
        raise InvalidJob("cannot resume", [problem])


def _sync_to_disk(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
