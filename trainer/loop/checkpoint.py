"""Checkpoints: a folder named step-N is always complete. The best three are kept, and the latest, which resumes.

A checkpoint is written to a temporary folder and then renamed; to remove one, it is renamed first. One that was written
only for resuming is not offered as a model, and is removed when the next one is complete.
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

from agent_rft.errors import MadeBefore, UserError
from agent_rft.rows.durable import sync_to_disk, write_durably

KEEP_BEST = 3
FORMAT = 2
"""The format of checkpoints, the same since 0.2.0. Raise it when older programs must not resume from them."""
TRAINING_STATE = "state"
"""The subfolder with all that only training needs. Only the latest checkpoint has one; older ones are just models."""
STATE = "loop.json"
"""The file with the state of the loop, which tells a checkpoint from an earlier one of the same step."""


@dataclass(frozen=True, slots=True)
class LoopState:
    """The state of the training loop.

    Attributes:
        rows_done: Ids of the rows of `epoch` that were trained or skipped.
        metrics: The step's metrics, without its own cost. A run that was killed before it reported them does so when it
            resumes.
        next_group: Admission number of the first group that no batch has taken yet.
        valid_rewards: Mean rewards of all validations so far, for early stop.
        offered: Whether it is offered as a model: after a validation or at the end, not for resuming only.
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
        """After a batch of these (epoch, row id) pairs; `rows_done` keeps those of the newest epoch."""
        epoch = max(self.epoch, *(row_epoch for row_epoch, _ in rows))
        done = set(self.rows_done) if epoch == self.epoch else set()
        done |= {row_id for row_epoch, row_id in rows if row_epoch == epoch}
        return replace(self, epoch=epoch, rows_done=sorted(done), next_group=self.next_group + num_groups)

    def with_step(self, version: int, trained_tokens: int) -> LoopState:
        """After an update that led to policy `version`."""
        tokens = self.trained_tokens + trained_tokens
        return replace(self, step=self.step + 1, version=version, trained_tokens=tokens)

    def with_validation(self, reward: float | None, metrics: dict[str, float]) -> LoopState:
        """After its step's validation, as its checkpoint holds it. A NaN, of nothing graded, does not count."""
        rewards = self.valid_rewards
        if reward is not None and not math.isnan(reward):
            rewards = [*rewards, reward]
        return replace(self, metrics=metrics, valid_reward=reward, offered=True, valid_rewards=rewards)


START = LoopState(0, 0, 0, [], 0, None)
"""The state of a run that has not trained yet."""


def checkpoints_in(folder: Path) -> list[tuple[Path, LoopState]]:
    """All complete checkpoints in a run's `checkpoints` folder, oldest first; none if there is no such folder.

    Only reads, so it is safe while another thread or process saves one.

    Raises:
        UserError: A newer version wrote one, or one before 0.2.0, or one is damaged.
    """
    found = []
    for path in sorted(path for path in folder.glob("step-*") if path.suffix != ".tmp"):
        with suppress(FileNotFoundError):  # removed in the meantime
            found.append((path, _read_state(path)))
    return found


def latest_checkpoint(folder: Path) -> tuple[Path, LoopState] | None:
    """The last one of `checkpoints_in`, if there is any."""
    return next(reversed(checkpoints_in(folder)), None)


def best_checkpoint(folder: Path) -> tuple[Path, LoopState] | None:
    """Of those that are offered as models, the one with the highest validation reward, the earliest of equal ones.

    Where none has a reward, it is the last one. Raises what `checkpoints_in` does.
    """
    offered = [(path, state) for path, state in checkpoints_in(folder) if state.offered]
    ranked = [entry for entry in offered if math.isfinite(_rank(entry[1]))]
    return max(ranked, key=lambda entry: _rank(entry[1])) if ranked else next(reversed(offered), None)


class Copies(Protocol):
    """Copies checkpoints elsewhere, in the background."""

    def add(self, checkpoint: Path, prune: Callable[[], None]) -> None:
        """Copy a complete checkpoint soon, and call `prune` when it is not needed any more. Returns at once."""

    def needs(self, checkpoint: Path) -> bool:
        """Whether it is being copied, so that it has to stay."""


class Checkpoints:
    """Writes the `checkpoints` folder of a run, and removes what a killed process left half-written there.

    `shown` is the path by which others know the folder.
    """

    def __init__(self, folder: Path, copies: Copies | None = None, shown: Path | None = None) -> None:
        self._folder = folder
        self._shown = shown or folder
        self._copies = copies
        self._pruning = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in [*folder.glob("*.tmp"), *folder.glob("*/*.tmp")]:
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        if copies is not None and (latest := self.latest()) is not None:
            copies.add(latest[0], self._prune)  # a killed process may not have copied it

    async def save(self, state: LoopState, write: Callable[[Path], Awaitable[None]]) -> Path:
        """Save a checkpoint whose files `write` puts into the given folder, and remove what is no longer needed.

        Raises:
            OSError: The disk is full or read-only. Earlier checkpoints are unaffected.
        """
        final = self._path(state)
        temporary = final.with_suffix(".tmp")
        temporary.mkdir()
        try:
            await write(temporary)
            (temporary / STATE).write_bytes(_content(state))
            await asyncio.to_thread(complete, temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        await self._saved(final)
        return self._shown / final.name

    async def update(self, state: LoopState) -> Path:
        """Save a state of the loop at the step of the latest checkpoint, whose learner is that of this step already.

        Raises:
            OSError: The disk is full or read-only; the checkpoint is unaffected.
        """
        path = self._path(state)
        await asyncio.to_thread(write_durably, path / STATE, _content(state))
        await self._saved(path)
        return self._shown / path.name

    def all(self) -> list[tuple[Path, LoopState]]:
        """All complete checkpoints, oldest first: see `checkpoints_in`."""
        return checkpoints_in(self._folder)

    def latest(self) -> tuple[Path, LoopState] | None:
        return latest_checkpoint(self._folder)

    def best(self) -> tuple[Path, LoopState] | None:
        """See `best_checkpoint`."""
        return best_checkpoint(self._folder)

    def _path(self, state: LoopState) -> Path:
        return self._folder / f"step-{state.step:06d}"

    async def _saved(self, checkpoint: Path) -> None:
        if self._copies is not None:
            self._copies.add(checkpoint, self._prune)
        await asyncio.to_thread(self._prune)

    def _prune(self) -> None:
        """Keep the latest whole, and the best of the others as models. May be called from several threads."""
        with self._pruning:
            self._remove_superfluous()

    def _remove_superfluous(self) -> None:
        kept = self.all()
        offered = [(path, state) for path, state in kept if state.offered]
        best = {path for path, _ in sorted(offered, key=lambda entry: _order(entry[1]))[-KEEP_BEST:]}
        for path, _ in kept[:-1]:
            if self._copies is not None and self._copies.needs(path):
                continue
            if path not in best:
                _remove(path)
            elif (path / TRAINING_STATE).exists():
                _remove(path / TRAINING_STATE)


def complete(temporary: Path) -> Path:
    """Give a written `step-N.tmp` its name, once all of its files are on disk."""
    for path in sorted(temporary.rglob("*"), reverse=True):
        sync_to_disk(path)
    sync_to_disk(temporary)
    final = temporary.with_suffix("")
    if final.exists():
        _remove(final)
    temporary.rename(final)
    sync_to_disk(final.parent)
    return final


def _rank(state: LoopState) -> float:
    """Higher is better. A validation in which nothing was graded says as little as none."""
    reward = state.valid_reward
    return -math.inf if reward is None or math.isnan(reward) else reward


def _order(state: LoopState) -> tuple[float, int]:
    """The greater, the more worth keeping: of equal rewards the earliest, without rewards the latest."""
    rank = _rank(state)
    return rank, -state.step if math.isfinite(rank) else state.step


def _content(state: LoopState) -> bytes:
    return json.dumps({"format": FORMAT} | asdict(state), indent=1).encode()


def _remove(folder: Path) -> None:
    """Remove a folder so that concurrent readers, or a killed process, never leave or see half of it."""
    shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}-removed.tmp")))


def num_bytes(folder: Path) -> int:
    """Size of a checkpoint on disk."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _read_state(checkpoint: Path) -> LoopState:
    try:
        saved = json.loads((checkpoint / STATE).read_text())
        if saved.get("format", 0) < FORMAT:
            raise MadeBefore.of(str(checkpoint))
        if saved["format"] > FORMAT:
            raise UserError(f"{checkpoint} was written by a newer version of agent-rft; continue with that version")
        return LoopState(**{f.name: saved[f.name] for f in fields(LoopState) if f.name in saved})
    except (ValueError, TypeError, AttributeError) as error:
        what = f"{checkpoint} is damaged ({STATE}: {error})"
        raise UserError(f"{what}; restore it, or start a new run with `model` set to an earlier one") from None
