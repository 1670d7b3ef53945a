"""Saver of a training loop's checkpoints. Each checkpoint has the loop's full state and the learner's state.

A checkpoint interrupts training only for a copy to host memory: the learner writes this copy to disk while training
continues. A full disk pauses the job instead of ending it.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable, Container
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from agent_rft.errors import RftError, UserError
from agent_rft.events import (
    CheckpointIntervalChanged,
    CheckpointSaved,
    DiskFreed,
    DiskFull,
    JobResumed,
    PhaseStarted,
    StateConverted,
    StepDone,
    TrainingWaitedForCheckpoint,
)
from agent_rft.loop_protocols import Checkpointable, LoopEventSink
from agent_rft.spec.job import CheckpointInterval
from agent_rft.trainer.loop.checkpoint import INITIAL_STATE, TRAINING_STATE, Checkpoints, LoopState, folder_bytes
from agent_rft.trainer.loop.journal import Journal


class CheckpointSaver:
    """Holds the current state of one training loop, and saves it in checkpoints.

    When a checkpoint is written, the records that it covers are removed from `journal`.
    """

    def __init__(
        self,
        learner: Checkpointable,
        checkpoints: Checkpoints,
        journal: Journal | None,
        interval: CheckpointInterval,
        sink: LoopEventSink,
        disk: FullDiskRetry,
        total_steps: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = INITIAL_STATE
        self._learner = learner
        self._checkpoints = checkpoints
        self._journal = journal
        self._interval = self._current_interval = interval
        self._waited = False
        self._sink = sink
        self._disk = disk
        self._total_steps = total_steps
        self._clock = clock
        self._saved, self._saved_at = INITIAL_STATE, clock()
        self._writing: asyncio.Task[None] | None = None

    @property
    def step(self) -> int:
        return self.state.step

    @property
    def has_steps_left(self) -> bool:
        return self.state.step < self._total_steps

    @property
    def is_due(self) -> bool:
        """Whether the job's interval requires a checkpoint of the latest step.

        An interval in minutes is ignored while a checkpoint is being written, because a new checkpoint would have to
        wait for that checkpoint.
        """
        steps = self.step - self._saved.step
        seconds = 0.0 if self._is_writing else self._clock() - self._saved_at
        return steps > 0 and self._current_interval.is_due(seconds, steps)

    @property
    def _is_writing(self) -> bool:
        return self._writing is not None and not self._writing.done()

    @property
    def is_servable(self) -> bool:
        """Whether the latest step is in a checkpoint that can be served as a model."""
        return self._saved.step >= self.step and self._saved.is_servable

    def best(self) -> LoopState | None:
        """Return the state of the best checkpoint by validation reward; None if there is no checkpoint."""
        found = self._checkpoints.best()
        return None if found is None else found[1]

    async def load_latest(self) -> LoopState:
        """Load the latest checkpoint into the learner, and return the loop's state in this checkpoint.

        Without a checkpoint, returns INITIAL_STATE.
        """
        latest = self._checkpoints.latest()
        if latest is None:
            return INITIAL_STATE
        folder, state = latest
        if not (folder / TRAINING_STATE).exists():
            what = f"{folder} has no training state, since only the latest checkpoint of a run can be resumed"
            raise UserError(f"{what}; start a new run with `model` set to this folder")
        converted = await self._learner.load(folder)
        if converted is not None:
            self._sink.emit(
                StateConverted(step=state.step, previous_layout=str(converted.previous), layout=str(converted.current))
            )
        return state

    async def resume(self, reported: Container[int]) -> LoopState:
        """Load the latest checkpoint with `load_latest`; set `state` to its result, and return it.

        `reported` contains the steps whose StepDone was already emitted. If it does not contain the checkpoint's step,
        StepDone is emitted for this step.
        """
        self.state = await self.load_latest()
        self._saved, self._saved_at = self.state, self._clock()
        self._sink.emit(JobResumed(step=self.step, total_steps=self._total_steps))
        if self.state.metrics and self.step not in reported:
            self._sink.emit(StepDone(step=self.step, total_steps=self._total_steps, metrics=self.state.metrics))
        return self.state

    async def save(self, state: LoopState) -> dict[str, float]:
        """Copy the learner's state, and write a checkpoint of `state` in the background.

        Does nothing and returns no metrics if `state` is already saved. Otherwise returns one metric: the seconds spent
        on the copy and on waiting until the previous checkpoint was written.

        Raises:
            OSError: This or the previous checkpoint could not be written. Earlier checkpoints are unaffected.
            LearnerFailed: A rank was lost; no checkpoint contains `state`.
        """
        started, waits = time.monotonic(), self._is_writing
        await self.wait_written()
        if state == self._saved:
            return {}
        if waits:
            self._report_wait(state.step - self._saved.step, time.monotonic() - started)
        self._sink.emit(PhaseStarted(phase="checkpoint", step=state.step))
        # Otherwise the checkpoint on disk already has the learner's state. It may be the only one, so it is updated.
        is_new = state.step > self._saved.step
        if is_new:
            await self._learner.snapshot()
        seconds = time.monotonic() - started
        self._writing = asyncio.create_task(self._write(state, self._saved, is_new))
        self._saved, self._saved_at = state, self._clock()
        return {"time_checkpoint_s": seconds}

    async def save_last(self) -> None:
        """Save a servable checkpoint of the latest step, unless there is one, and wait until it is written.

        Raises the same errors as `save`.
        """
        if not self.is_servable:
            await self.save(self.state.without_validation({}, is_servable=True))
        await self.wait_written()

    async def wait_written(self) -> None:
        """Wait until the current checkpoint is written. Raises the same errors as `save`."""
        if self._writing is not None:
            try:
                await self._writing
            finally:
                self._writing = None

    async def wait_settled(self) -> None:
        """Wait until the current checkpoint is written or has failed; ignore the error of a failed checkpoint."""
        with suppress(OSError, RftError):
            await self.wait_written()

    def _report_wait(self, steps: int, seconds: float) -> None:
        interval = self._interval.steps
        if interval is not None and steps >= interval and not self._waited:
            self._waited = True
            self._sink.emit(TrainingWaitedForCheckpoint(steps=interval, waited_s=seconds))

    def _fit_interval(self, write_s: float) -> None:
        """Update the checkpoint interval after a write that took `write_s` seconds."""
        fitting, was = self._interval.extend_for_writes(write_s), self._current_interval.minutes
        if fitting.minutes is None or was is None:
            return
        too_short, too_long = write_s > 60 * was, 4 * write_s < 60 * was and fitting.minutes < was
        if too_short or too_long:
            self._current_interval = fitting
            self._sink.emit(CheckpointIntervalChanged(minutes=fitting.minutes, previous_minutes=was, write_s=write_s))

    async def _write(self, state: LoopState, before: LoopState, is_new: bool) -> None:
        started, write_s, checkpoints = self._clock(), 0.0, self._checkpoints

        async def write() -> Path:
            nonlocal write_s
            attempt = self._clock()
            path = await (
                checkpoints.save(state, self._learner.write_snapshot) if is_new else checkpoints.update(state)
            )
            write_s = self._clock() - attempt  # excludes the time while the disk was full
            return path

        try:
            path = await self._disk.retry_while_full(write)
        except (OSError, RftError):
            self._saved = before
            raise
        if self._journal is not None:
            await asyncio.to_thread(self._journal.remove_covered, state.next_group, state.step)
        saved = CheckpointSaved(
            step=state.step,
            path=str(path),
            num_bytes=await asyncio.to_thread(folder_bytes, path),
            valid_reward=state.valid_reward,
            is_servable=state.is_servable,
            write_s=self._clock() - started,
        )
        self._sink.emit(saved)
        if is_new:
            self._fit_interval(write_s)


# -- disk --------------------------------------------------------------------------------------------------------------


T = TypeVar("T")
FULL = {errno.ENOSPC, errno.EDQUOT}
DISK_RETRY_INTERVAL_S = 10.0
MAX_DISK_WAIT_S = 24 * 3600.0


class FullDiskRetry:
    """Repeats writes to a run folder while the folder's disk is full. `sleep` is called with a number of seconds."""

    def __init__(self, sink: LoopEventSink, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._sink = sink
        self._sleep = sleep
        self._waiting = 0
        self._stopping = False

    def stop(self) -> None:
        """Stop waiting for free disk space. Writes to a full disk then fail."""
        self._stopping = True

    async def retry_while_full(self, write: Callable[[], Awaitable[T]]) -> T:
        """Call `write` and return its result. While the disk is full, wait and call `write` again.

        Raises:
            OSError: The write failed for another reason, or the disk stayed full for MAX_DISK_WAIT_S.
        """
        waited_s = 0.0
        while True:
            try:
                result = await write()
            except OSError as error:
                if error.errno not in FULL or self._stopping or waited_s >= MAX_DISK_WAIT_S:
                    raise
                if not waited_s:
                    self._begin_disk_wait()
                await self._sleep(DISK_RETRY_INTERVAL_S)
                waited_s += DISK_RETRY_INTERVAL_S
            else:
                if waited_s:
                    self._end_disk_wait()
                return result

    def _begin_disk_wait(self) -> None:
        self._waiting += 1
        if self._waiting == 1:
            self._sink.emit(DiskFull())

    def _end_disk_wait(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._sink.emit(DiskFreed())
