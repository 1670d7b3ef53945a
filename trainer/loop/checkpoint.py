"""Checkpoints: complete folders named step-N. The best three are kept, and the latest, from which a run resumes.

A checkpoint is written to a temporary folder, which is then renamed. Before it is removed, it is renamed again. A
checkpoint that is only for resuming is not offered as a model, and is removed when the next one is complete.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Protocol

from agent_rft.errors import OutdatedFormat, UserError
from agent_rft.rows.durable_write import sync_to_disk, write_durably

KEEP_BEST = 3
FORMAT = 2
"""Version of the checkpoint format, unchanged since 0.2.0. Raise it to keep older programs from resuming."""
TRAINING_STATE = "state"
"""Subfolder with the state that only training needs. Only the latest checkpoint has one; older ones are just models."""
LOOP_STATE_FILE = "loop.json"
"""File with the state of the loop. It distinguishes a checkpoint from an earlier one of the same step."""


@dataclass(frozen=True, slots=True)
class LoopState:
    """State of the training loop.

    Attributes:
        rows_done: Ids of the rows of `epoch` that were trained or skipped.
        metrics: The step's metrics, without the checkpoint's own cost. A run that was killed before it reported them
            reports them when it resumes.
        next_group: Admission number of the first group that is in no batch yet.
        valid_rewards: Mean rewards of all validations so far, for early stopping.
        offered: Whether the checkpoint is offered as a model: after a validation and at the end.
    """

    step: int
    version: int
    epoch: int
    rows_done: list[str]
    trained_tokens: int
    valid_reward: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    next_group: int = 0
    offered: bool = True
    valid_rewards: list[float] = field(default_factory=list)

    def with_rows(self, rows: Sequence[tuple[int, str]], num_groups: int = 0) -> LoopState:
        """Return the state after a batch of these (epoch, row id) pairs; `rows_done` has the newest epoch only."""
        epoch = max(self.epoch, *(row_epoch for row_epoch, _ in rows))
        done = set(self.rows_done) if epoch == self.epoch else set()
        done |= {row_id for row_epoch, row_id in rows if row_epoch == epoch}
        return replace(self, epoch=epoch, rows_done=sorted(done), next_group=self.next_group + num_groups)

    def with_step(self, version: int, trained_tokens: int) -> LoopState:
        """Return the state after an update that led to policy `version`."""
        tokens = self.trained_tokens + trained_tokens
        return replace(self, step=self.step + 1, version=version, trained_tokens=tokens)

    def with_validation(self, reward: float | None, metrics: dict[str, float]) -> LoopState:
        """Return the state to save after its step's validation. A NaN reward (nothing was graded) does not count."""
        rewards = self.valid_rewards
        if reward is not None and not math.isnan(reward):
            rewards = [*rewards, reward]
        return replace(self, metrics=metrics, valid_reward=reward, offered=True, valid_rewards=rewards)


INITIAL_STATE = LoopState(0, 0, 0, [], 0, None)
"""State of a run that has not trained yet."""


def list_checkpoints(folder: Path) -> list[tuple[Path, LoopState]]:
    """Return all complete checkpoints in a run's `checkpoints` folder, oldest first; empty if it does not exist.

    Only reads, so it is safe while another thread or process saves a checkpoint.

    Raises:
        UserError: A checkpoint is damaged, or is of a newer version or a version before 0.2.0.
    """
    found = []
    for path in sorted(path for path in folder.glob("step-*") if path.suffix != ".tmp"):
        with suppress(FileNotFoundError):  # removed concurrently
            found.append((path, _read_state(path)))
    return found


def latest_checkpoint(folder: Path) -> tuple[Path, LoopState] | None:
    """Return the last checkpoint of `list_checkpoints`, or None."""
    return next(reversed(list_checkpoints(folder)), None)


def best_checkpoint(folder: Path) -> tuple[Path, LoopState] | None:
    """Return the checkpoint with the highest validation reward of the ones offered as models; the earliest on ties.

    If no checkpoint has a reward, returns the last one. Raises the errors of `list_checkpoints`.
    """
    offered = [(path, state) for path, state in list_checkpoints(folder) if state.offered]
    ranked = [entry for entry in offered if math.isfinite(_ranking_reward(entry[1]))]
    return max(ranked, key=lambda entry: _ranking_reward(entry[1])) if ranked else next(reversed(offered), None)


class CheckpointUploads(Protocol):
    """Uploads checkpoints in the background."""

    def add(self, checkpoint: Path, prune: Callable[[], None]) -> None:
        """Schedule the upload of a complete checkpoint; call `prune` when its folder is no longer needed."""

    def is_uploading(self, checkpoint: Path) -> bool:
        """Whether the checkpoint is being uploaded, and so cannot be removed."""


class Checkpoints:
    """Writes the `checkpoints` folder of a run, and removes incomplete files that a killed process left there.

    `shown` is the folder's path in results; None: the same path.
    """

    def __init__(self, folder: Path, copies: CheckpointUploads | None = None, shown: Path | None = None) -> None:
        self._folder = folder
        self._shown = shown or folder
        self._copies = copies
        self._pruning = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in [*folder.glob("*.tmp"), *folder.glob("*/*.tmp")]:
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        if copies is not None and (latest := self.latest()) is not None:
            copies.add(latest[0], self._prune)  # a killed process may not have uploaded it

    async def save(self, state: LoopState, write: Callable[[Path], Awaitable[None]]) -> Path:
        """Save a checkpoint whose files `write` puts into its argument, a folder; then remove superfluous checkpoints.

        Raises:
            OSError: The disk is full or read-only. Earlier checkpoints are unaffected.
        """
        final = self._path(state)
        temporary = final.with_suffix(".tmp")
        temporary.mkdir()
        try:
            await write(temporary)
            (temporary / LOOP_STATE_FILE).write_bytes(_serialize(state))
            await asyncio.to_thread(publish_folder, temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        await self._finish_save(final)
        return self._shown / final.name

    async def update(self, state: LoopState) -> Path:
        """Replace the state of the loop in the latest checkpoint, which already has the learner's state of this step.

        Raises:
            OSError: The disk is full or read-only; the checkpoint is unaffected.
        """
        path = self._path(state)
        await asyncio.to_thread(write_durably, path / LOOP_STATE_FILE, _serialize(state))
        await self._finish_save(path)
        return self._shown / path.name

    def all(self) -> list[tuple[Path, LoopState]]:
        """Return all complete checkpoints, oldest first; see `list_checkpoints`."""
        return list_checkpoints(self._folder)

    def latest(self) -> tuple[Path, LoopState] | None:
        return latest_checkpoint(self._folder)

    def best(self) -> tuple[Path, LoopState] | None:
        """Return the best checkpoint; see `best_checkpoint`."""
        return best_checkpoint(self._folder)

    def _path(self, state: LoopState) -> Path:
        return self._folder / f"step-{state.step:06d}"

    async def _finish_save(self, checkpoint: Path) -> None:
        if self._copies is not None:
            self._copies.add(checkpoint, self._prune)
        await asyncio.to_thread(self._prune)

    def _prune(self) -> None:
        """Keep the latest checkpoint in full, and the best others as models. Several threads may call this."""
        with self._pruning:
            self._remove_superfluous()

    def _remove_superfluous(self) -> None:
        checkpoints = self.all()
        offered = [(path, state) for path, state in checkpoints if state.offered]
        best = {path for path, _ in sorted(offered, key=lambda entry: _sort_key(entry[1]))[-KEEP_BEST:]}
        for path, _ in checkpoints[:-1]:
            if self._copies is not None and self._copies.is_uploading(path):
                continue
            if path not in best:
                _remove(path)
            elif (path / TRAINING_STATE).exists():
                _remove(path / TRAINING_STATE)


def publish_folder(temporary: Path) -> Path:
    """Sync all files of `step-N.tmp` to disk, then rename it to `step-N`, and return the new path."""
    for path in sorted(temporary.rglob("*"), reverse=True):
        sync_to_disk(path)
    sync_to_disk(temporary)
    final = temporary.with_suffix("")
    if final.exists():
        _remove(final)
    temporary.rename(final)
    sync_to_disk(final.parent)
    return final


def _ranking_reward(state: LoopState) -> float:
    """Return the reward for ranking, higher is better; -inf without a validation, or if it graded nothing."""
    reward = state.valid_reward
    return -math.inf if reward is None or math.isnan(reward) else reward


def _sort_key(state: LoopState) -> tuple[float, int]:
    """Return the sort key, higher is better: among equal rewards the earliest, without rewards the latest."""
    rank = _ranking_reward(state)
    return rank, -state.step if math.isfinite(rank) else state.step


def _serialize(state: LoopState) -> bytes:
    return json.dumps({"format": FORMAT} | asdict(state), indent=1).encode()


def _remove(folder: Path) -> None:
    """Rename a folder, then remove it, so that no incomplete folder has its name, even if the process is killed."""
    shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}-removed.tmp")))


def folder_bytes(folder: Path) -> int:
    """Return the size of a checkpoint on disk."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _read_state(checkpoint: Path) -> LoopState:
    try:
        saved = json.loads((checkpoint / LOOP_STATE_FILE).read_text())
        if saved.get("format", 0) < FORMAT:
            raise OutdatedFormat.for_path(str(checkpoint))
        if saved["format"] > FORMAT:
            raise UserError(f"{checkpoint} was written by a newer version of agent-rft; continue with that version")
        return LoopState(**{f.name: saved[f.name] for f in fields(LoopState) if f.name in saved})
    except (ValueError, TypeError, AttributeError) as error:
        what = f"{checkpoint} is damaged ({LOOP_STATE_FILE}: {error})"
        raise UserError(f"{what}; restore it, or start a new run with `model` set to an earlier checkpoint") from None
