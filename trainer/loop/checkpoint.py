"""Checkpoints: folders named step-N, which are always complete. A run resumes from the latest checkpoint.

The three best checkpoints are kept as well. A checkpoint is written to a temporary folder, which is renamed when it is
complete. Before a checkpoint is removed, its folder is renamed again. A checkpoint that exists only for resuming is not
servable, and is removed when the next checkpoint is complete.
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
from agent_rft.metrics.missing_rollouts import ValidationScore, last_gain
from agent_rft.rows.durable_write import sync_to_disk, write_durably

KEEP_BEST = 3
FORMAT = 3
"""Version of the checkpoint format, unchanged since 0.2.0.

Increase it if older versions of agent-rft must not resume from new checkpoints."""
TRAINING_STATE = "state"
"""Subfolder with the state that only training needs. Only the latest checkpoint has one; older ones are just models."""
LOOP_STATE_FILE = "loop.json"
"""File of a checkpoint with the state of the training loop."""


@dataclass(frozen=True, slots=True)
class LoopState:
    """State of the training loop.

    Attributes:
        rows_done: Ids of the rows of `epoch` that were trained or skipped.
        metrics: The step's metrics, without the time that the checkpoint itself takes. If a run is killed before it
            reports these metrics, the resumed run reports them.
        next_group: Admission number of the first group that is in no batch yet.
        valid_rewards: Rewards of the validations so far, for early stopping. Validations that graded too few rollouts
            are omitted. The first reward is a mean reward. Each later reward is the reward of the best earlier
            validation plus the mean gain since then, over the rows that both validations graded.
        is_servable: Whether the checkpoint is offered as a model, which is the case after a validation and at the end.
        score: Rewards of this step's validation by row; None without a validation, and in checkpoints of 0.2.0.
        best_score: Rewards of the best validation so far, with which early stopping compares the next validation; None
            if there is no such validation, or if 0.2.0 recorded it.
    """

    step: int
    version: int
    epoch: int
    rows_done: list[str]
    trained_tokens: int
    valid_reward: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    next_group: int = 0
    is_servable: bool = True
    valid_rewards: list[float] = field(default_factory=list)
    score: ValidationScore | None = None
    best_score: ValidationScore | None = None

    def with_rows(self, rows: Sequence[tuple[int, str]], num_groups: int = 0) -> LoopState:
        """Return the state after a batch with these rows, which are (epoch, row id) pairs, in `num_groups` groups.

        `rows_done` of the returned state contains only the rows of the newest epoch.
        """
        epoch = max(self.epoch, *(row_epoch for row_epoch, _ in rows))
        done = set(self.rows_done) if epoch == self.epoch else set()
        done |= {row_id for row_epoch, row_id in rows if row_epoch == epoch}
        return replace(self, epoch=epoch, rows_done=sorted(done), next_group=self.next_group + num_groups)

    def with_step(self, version: int, trained_tokens: int) -> LoopState:
        """Return the state after an update that resulted in policy `version`."""
        tokens = self.trained_tokens + trained_tokens
        return replace(self, step=self.step + 1, version=version, trained_tokens=tokens)

    def with_validation(
        self,
        reward: float | None,
        metrics: dict[str, float],
        score: ValidationScore | None = None,
        min_gain: float = 0.0,
    ) -> LoopState:
        """Return the state to save after the step's validation.

        A NaN reward means that nothing was graded. Such a reward, and the reward of an insufficient validation, are not
        added to `valid_rewards`. `min_gain` is the job's setting `early_stop.min_gain`.
        """
        validated = replace(self, metrics=metrics, valid_reward=reward, is_servable=True, score=score)
        if reward is None or math.isnan(reward) or (score is not None and not score.is_sufficient):
            return validated
        if score is not None:
            if self.best_score is not None:
                reward = self.best_score.scaled_reward + score.gain_over(self.best_score)
            score = replace(score, scaled_reward=reward)
        rewards = [*self.valid_rewards, reward]
        is_best = last_gain(rewards, min_gain) == len(rewards) - 1
        return replace(validated, valid_rewards=rewards, best_score=score if is_best else self.best_score)

    def with_validations_of(self, validated: LoopState) -> LoopState:
        """Return this state with the validation history of `validated`."""
        return replace(self, valid_rewards=validated.valid_rewards, best_score=validated.best_score)

    def without_validation(self, metrics: dict[str, float], is_servable: bool) -> LoopState:
        """Return the state to save after a step that was not validated."""
        return replace(self, metrics=metrics, valid_reward=None, score=None, is_servable=is_servable)


INITIAL_STATE = LoopState(0, 0, 0, [], 0, None)
"""State of a run that has not trained yet."""


def list_checkpoints(folder: Path) -> list[tuple[Path, LoopState]]:
    """Return path and state of each complete checkpoint in `folder`, oldest first; empty if `folder` does not exist.

    This only reads, so it is safe while another thread or process saves a checkpoint.

    Raises:
        UserError: A checkpoint is damaged, or was written by a newer version or by a version before 0.2.0.
    """
    found = []
    for path in sorted(path for path in folder.glob("step-*") if path.suffix != ".tmp"):
        with suppress(FileNotFoundError):  # removed concurrently
            found.append((path, _read_state(path)))
    return found


def latest_checkpoint(folder: Path) -> tuple[Path, LoopState] | None:
    """Return the last checkpoint of `list_checkpoints`, or None if there are no checkpoints."""
    return next(reversed(list_checkpoints(folder)), None)


def best_checkpoint(folder: Path) -> tuple[Path, LoopState] | None:
    """Return the checkpoint with the best validation, among the servable checkpoints.

    Two validations are compared over the rows that were graded in both. Among equal rewards, returns the earliest
    checkpoint. If no validation is sufficient, returns the checkpoint whose validation has the fewest missing rollouts.
    If no checkpoint has a reward, returns the last servable checkpoint, or None if no checkpoint is servable. Raises
    the same errors as `list_checkpoints`.
    """
    servable = [(path, state) for path, state in list_checkpoints(folder) if state.is_servable]
    return next(iter(rank_checkpoints(servable)), None)


def rank_checkpoints(checkpoints: Sequence[tuple[Path, LoopState]]) -> list[tuple[Path, LoopState]]:
    """Return the checkpoints sorted from best to worst. `checkpoints` must be sorted by step."""
    left, ranked = list(checkpoints), []
    while left:
        best = left[0]
        for entry in left[1:]:
            best = entry if _is_better(entry[1], best[1]) else best
        left.remove(best)
        ranked.append(best)
    return ranked


class CheckpointUploads(Protocol):
    """Protocol for uploading checkpoints in the background."""

    def add(self, checkpoint: Path, prune: Callable[[], None]) -> None:
        """Schedule the upload of a complete checkpoint; call `prune` when the folder is no longer needed."""

    def is_uploading(self, checkpoint: Path) -> bool:
        """Return whether the checkpoint is being uploaded. It must not be removed during the upload."""


class Checkpoints:
    """Writes the `checkpoints` folder of a run. When created, it removes incomplete files of a killed process.

    `copies` uploads complete checkpoints; None means no uploads. `shown` is the folder's path as shown to users, by
    default `folder`. `save` and `update` return paths that begin with `shown`.
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
        """Save a checkpoint with `state`, then remove superfluous checkpoints.

        `write` is called with the checkpoint's temporary folder, and writes the other files of the checkpoint into it.

        Raises:
            OSError: The disk is full or read-only. Earlier checkpoints are unaffected.
        """
        final = self._path(state)
        temporary = final.with_suffix(".tmp")
        temporary.mkdir()
        try:
            await write(temporary)
            (temporary / LOOP_STATE_FILE).write_bytes(_serialize(state))
            await asyncio.to_thread(finalize_folder, temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        await self._finish_save(final)
        return self._shown / final.name

    async def update(self, state: LoopState) -> Path:
        """Replace the loop's state in the latest checkpoint. The checkpoint must have the same step as `state`.

        Raises:
            OSError: The disk is full or read-only; the checkpoint is unaffected.
        """
        path = self._path(state)
        await asyncio.to_thread(write_durably, path / LOOP_STATE_FILE, _serialize(state))
        await self._finish_save(path)
        return self._shown / path.name

    def list_all(self) -> list[tuple[Path, LoopState]]:
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
        """Remove superfluous checkpoints. Only the latest keeps its training state. This method is thread-safe."""
        with self._pruning:
            self._remove_superfluous()

    def _remove_superfluous(self) -> None:
        checkpoints = self.list_all()
        servable = [(path, state) for path, state in checkpoints if state.is_servable]
        best = {path for path, _ in rank_checkpoints(servable)[:KEEP_BEST]}
        for path, _ in checkpoints[:-1]:
            if self._copies is not None and self._copies.is_uploading(path):
                continue
            if path not in best:
                _remove(path)
            elif (path / TRAINING_STATE).exists():
                _remove(path / TRAINING_STATE)


def finalize_folder(temporary: Path) -> Path:
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


def _is_better(later: LoopState, earlier: LoopState) -> bool:
    """Return whether `later` is better than `earlier`. The step of `earlier` comes before the step of `later`.

    A state whose validation graded enough rollouts is better than a state without such a validation. Validations
    recorded by version 0.2.0 have a mean reward, but no rewards of single rows. These validations count as
    having graded enough rollouts. If one of the states has such a validation, the mean rewards are compared.
    """
    ranks = _validation_rank(later), _validation_rank(earlier)
    if ranks[0] != ranks[1]:
        return ranks[0] > ranks[1]
    if later.valid_reward is None or earlier.valid_reward is None or math.isnan(later.valid_reward):
        return True  # neither state has a reward
    if later.score is None or earlier.score is None:
        return later.valid_reward > earlier.valid_reward
    return later.score.gain_over(earlier.score) > 0


def _validation_rank(state: LoopState) -> float:
    """Return a number that is higher for a more complete validation.

    The number is -inf if the state has no reward, and 1 if the validation graded enough rollouts. Otherwise, the number
    is minus the number of missing rollouts.
    """
    if state.valid_reward is None or math.isnan(state.valid_reward):
        return -math.inf
    return 1.0 if state.score is None or state.score.is_sufficient else -float(state.score.num_missing)


def _serialize(state: LoopState) -> bytes:
    return json.dumps({"format": FORMAT} | asdict(state), indent=1).encode()


def _remove(folder: Path) -> None:
    """Remove a folder. It is renamed first, so that a partly removed folder does not look like a checkpoint."""
    shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}-removed.tmp")))


def folder_bytes(folder: Path) -> int:
    """Return the size of a checkpoint's folder on disk, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _read_state(checkpoint: Path) -> LoopState:
    try:
        saved = json.loads((checkpoint / LOOP_STATE_FILE).read_text())
        if saved.get("format", 0) < FORMAT:
            raise OutdatedFormat.for_path(str(checkpoint))
        if saved["format"] > FORMAT:
            raise UserError(f"{checkpoint} was written by a newer version of agent-rft; continue with that version")
        for name in ("score", "best_score"):
            saved[name] = None if saved.get(name) is None else ValidationScore(**saved[name])
        return LoopState(**{f.name: saved[f.name] for f in fields(LoopState) if f.name in saved})
    except (ValueError, TypeError, AttributeError) as error:
        what = f"{checkpoint} is damaged ({LOOP_STATE_FILE}: {error})"
        fix = "restore this checkpoint, or start a new run with `model` set to an earlier checkpoint"
        raise UserError(f"{what}; {fix}") from None
