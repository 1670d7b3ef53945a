"""Checkpoints: a folder named step-N is always complete. The best three and the latest are kept.

A checkpoint is written to a temporary folder and then renamed; to remove one, it is renamed first.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from trainer.errors import UserError

KEEP_BEST = 3
FORMAT = 1
"""The format of checkpoints; older ones have none. Raise it when older programs must not resume from them."""
_STATE = "loop.json"


@dataclass(frozen=True, slots=True)
class LoopState:
    """The state of the training loop.

    Attributes:
        rows_done: Ids of the rows of `epoch` that were trained or skipped.
        metrics: The step's metrics. They are reported once the checkpoint is complete, or on resuming if the run was
            killed in between.
    """

    step: int
    version: int
    epoch: int
    rows_done: list[str]
    trained_tokens: int
    valid_reward: float | None
    metrics: dict[str, float] = field(default_factory=dict)


def checkpoints_in(folder: Path) -> list[tuple[Path, LoopState]]:
    """All complete checkpoints in a run's `checkpoints` folder, oldest first; none if there is no such folder.

    Only reads, so it is safe while another thread or process saves one.

    Raises:
        UserError: A newer version wrote one, or one is damaged.
    """
    found = []
    for path in sorted(path for path in folder.glob("step-*") if path.suffix != ".tmp"):
        with suppress(FileNotFoundError):  # removed in the meantime
            found.append((path, _read_state(path)))
    return found


def latest_checkpoint(folder: Path) -> tuple[Path, LoopState] | None:
    """The last one of `checkpoints_in`, if there is any."""
    return next(reversed(checkpoints_in(folder)), None)


class Checkpoints:
    """Writes the `checkpoints` folder of a run, and removes what a killed process left half-written there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*.tmp"):
            shutil.rmtree(leftover)

    async def save(self, state: LoopState, write: Callable[[Path], Awaitable[None]]) -> Path:
        """Save a checkpoint whose files `write` puts into the given folder, and remove checkpoints no longer needed.

        Raises:
            OSError: The disk is full or read-only. Earlier checkpoints are unaffected.
        """
        final = self._folder / f"step-{state.step:06d}"
        temporary = final.with_suffix(".tmp")
        temporary.mkdir()
        try:
            await write(temporary)
            (temporary / _STATE).write_text(json.dumps({"format": FORMAT} | asdict(state), indent=1))
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
        """All complete checkpoints, oldest first: see `checkpoints_in`."""
        return checkpoints_in(self._folder)

    def latest(self) -> tuple[Path, LoopState] | None:
        return latest_checkpoint(self._folder)

    def _prune(self) -> None:
        kept = self.all()
        ranked = sorted(kept, key=lambda entry: entry[1].valid_reward if entry[1].valid_reward is not None else -1e30)
        best = {path for path, _ in ranked[-KEEP_BEST:]}
        for path, _ in kept[:-1]:
            if path not in best:
                _remove(path)


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint so that concurrent readers, or a killed process, never leave or see half of it."""
    shutil.rmtree(checkpoint.rename(checkpoint.with_name(f"{checkpoint.name}-removed.tmp")))


def num_bytes(folder: Path) -> int:
    """Size of a checkpoint on disk."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _read_state(checkpoint: Path) -> LoopState:
    try:
        saved = json.loads((checkpoint / _STATE).read_text())
        if saved.get("format", 0) > FORMAT:
            raise UserError(f"{checkpoint} was written by a newer version of agent-rft; continue with that version")
        return LoopState(**{f.name: saved[f.name] for f in fields(LoopState) if f.name in saved})
    except (ValueError, TypeError, AttributeError) as error:
        what = f"{checkpoint} is damaged ({_STATE}: {error})"
        raise UserError(f"{what}; delete it to continue from the checkpoint before it") from None


def _sync_to_disk(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
