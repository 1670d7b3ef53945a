"""Checkpoints whose writing takes longer than their interval."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent_rft.events import CheckpointIntervalChanged, CheckpointSaved, TrainingWaitedForCheckpoint
from agent_rft.spec.job import CheckpointInterval
from agent_rft.trainer.loop.checkpoint import Checkpoints
from agent_rft.trainer.loop.checkpoint_saver import CheckpointSaver, FullDiskRetry
from tests.support.fakes import FakeLearner, FakeSink


class SlowWrites(FakeLearner):
    """A write takes as long as the test says."""

    def __init__(self, now: list[float]) -> None:
        super().__init__()
        self._now = now
        self.seconds: asyncio.Queue[float] = asyncio.Queue()

    async def write_snapshot(self, folder: Path) -> None:
        self._now[0] += await self.seconds.get()
        await super().write_snapshot(folder)


class Saving:
    """The saving of a loop, without the loop."""

    def __init__(self, folder: Path, **interval: float | None) -> None:
        self.now = [0.0]
        self.sink = FakeSink()
        self.learner = SlowWrites(self.now)
        checkpoints, disk = Checkpoints(folder / "checkpoints"), FullDiskRetry(self.sink)
        self.progress = CheckpointSaver(
            self.learner,
            checkpoints,
            None,
            CheckpointInterval.model_validate(interval),
            self.sink,
            disk,
            1_000,
            clock=lambda: self.now[0],
        )

    def step(self, seconds: float) -> None:
        self.now[0] += seconds
        self.progress.state = self.progress.state.with_step(1, 1)

    async def write(self, seconds: float) -> None:
        """Take a step and save it, with a write that takes this long."""
        self.step(1.0)
        await self.progress.save(self.progress.state)
        self.learner.seconds.put_nowait(seconds)
        await self.progress.wait_written()


async def test_interval_in_minutes_becomes_twice_the_time_of_a_slow_write(tmp_path: Path) -> None:
    saving = Saving(tmp_path, minutes=10)
    await saving.write(300.0)  # fits
    await saving.write(900.0)
    changed = CheckpointIntervalChanged(minutes=30.0, previous_minutes=10.0, write_s=900.0)
    assert saving.sink.of(CheckpointIntervalChanged) == [changed]
    saving.step(899.0)
    assert not saving.progress.is_due
    saving.step(1.0)
    assert saving.progress.is_due, "the interval counts from the snapshot, before its write"
    await saving.write(1_000.0)  # fits the new interval
    assert saving.sink.of(CheckpointIntervalChanged) == [changed]
    await saving.write(60.0)
    back = CheckpointIntervalChanged(minutes=10.0, previous_minutes=30.0, write_s=60.0)
    assert saving.sink.of(CheckpointIntervalChanged) == [changed, back]


async def test_training_does_not_wait_for_a_write_that_outlasts_an_interval_in_minutes(tmp_path: Path) -> None:
    saving = Saving(tmp_path, minutes=10)
    saving.step(600.0)
    await saving.progress.save(saving.progress.state)
    saving.step(1_200.0)
    assert not saving.progress.is_due
    saving.learner.seconds.put_nowait(0.0)
    await saving.progress.wait_settled()
    assert saving.progress.is_due


async def test_interval_in_steps_is_kept_and_the_wait_is_reported_once(tmp_path: Path) -> None:
    saving = Saving(tmp_path, minutes=None, steps=1)
    for _ in range(3):
        saving.step(1.0)
        assert saving.progress.is_due
        saving.learner.seconds.put_nowait(500.0)
        await saving.progress.save(saving.progress.state)
    await saving.progress.wait_written()
    assert [saved.step for saved in saving.sink.of(CheckpointSaved)] == [1, 2, 3]
    assert [event.steps for event in saving.sink.of(TrainingWaitedForCheckpoint)] == [1]
    assert saving.sink.of(CheckpointIntervalChanged) == []
