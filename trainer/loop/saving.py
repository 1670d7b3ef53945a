"""A loop's state and checkpoints: one LoopState holds all that the loop owns, and is saved with every checkpoint."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainer.events import CheckpointSaved, JobResumed, PhaseBegan
from trainer.loop.checkpoint import Checkpoints, LoopState, num_bytes
from trainer.protocols import Checkpointable, EventSink
from trainer.types import GroupRequest


class Progress:
    """The state of one loop, which is saved together with its learner."""

    def __init__(self, learner: Checkpointable, checkpoints: Checkpoints, sink: EventSink, total_steps: int) -> None:
        self.state = LoopState(0, 0, 0, [], 0, None)
        self._learner = learner
        self._checkpoints = checkpoints
        self._sink = sink
        self._total_steps = total_steps
        self._saved_step = 0

    @property
    def step(self) -> int:
        return self.state.step

    @property
    def has_steps_left(self) -> bool:
        return self.state.step < self._total_steps

    @property
    def is_saved(self) -> bool:
        """Whether the latest step is in a checkpoint."""
        return self._saved_step >= self.state.step

    async def resume(self, folder: Path, state: LoopState) -> None:
        """Continue from a checkpoint: load the learner and the state."""
        await self._learner.load(folder)
        self.state, self._saved_step = state, state.step
        self._sink.emit(JobResumed(step=state.step, total_steps=self._total_steps))

    def advance(self, rows: Sequence[tuple[int, str]], version: int, trained_tokens: int) -> None:
        """Count a step that used these (epoch, row id) pairs; `rows_done` keeps those of the newest epoch."""
        state = self.state
        epoch = max(state.epoch, max(row_epoch for row_epoch, _ in rows))
        done = set(state.rows_done) if epoch == state.epoch else set()
        done |= {row_id for row_epoch, row_id in rows if row_epoch == epoch}
        self.state = replace(
            state,
            step=state.step + 1,
            version=version,
            epoch=epoch,
            rows_done=sorted(done),
            trained_tokens=state.trained_tokens + trained_tokens,
        )

    async def save(self, valid_reward: float | None, metrics: dict[str, float]) -> dict[str, float]:
        """Write a checkpoint with the `metrics` of its step; returns its duration and size as metrics.

        Raises:
            OSError: The disk is full or read-only; earlier checkpoints are untouched.
        """
        self._sink.emit(PhaseBegan(phase="checkpoint", step=self.step))
        self.state = replace(self.state, valid_reward=valid_reward, metrics=metrics)
        started = time.monotonic()
        path = await self._checkpoints.save(self.state, self._learner.save)
        seconds, size = time.monotonic() - started, num_bytes(path)
        self._saved_step = self.step
        saved = CheckpointSaved(step=self.step, path=str(path), num_bytes=size, valid_reward=valid_reward)
        self._sink.emit(saved)
        return {"time_checkpoint_s": seconds, "checkpoint_bytes": float(size)}


def rows_of(requests: Sequence[GroupRequest]) -> list[tuple[int, str]]:
    """The (epoch, row id) pairs of requests, for `Progress.advance`."""
    return [(request.epoch, request.task.row_id) for request in requests]
