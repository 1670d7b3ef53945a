"""Engines and learner time-share their devices: the loop never waits for rollouts while the learner has the lease."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent_rft.actors.runtime.gpu_lease import GpuLease
from agent_rft.errors import LearnerFailed
from agent_rft.types import Group, GroupRequest, StepReport, SyncReport, TrainSegment
from tests.support.fakes import FakeLearner, FakeRollouts
from tests.support.loops import EACH_STEP, RUN, Made


class Engines(FakeRollouts):
    """They sample only while they are awake, as those of a fleet: requests wait, and begin again."""

    def __init__(self) -> None:
        super().__init__()
        self.awake = asyncio.Event()
        self.lease: GpuLease

    async def sample(self, request: GroupRequest) -> Group:
        while True:
            await self.awake.wait()
            group = await super().sample(request)
            if self.awake.is_set():
                return group
            self.requests.pop()

    async def publish(self, version: int) -> SyncReport:
        await self.lease.give_to_learner()
        await self.lease.give_to_engines()
        return await super().publish(version)

    async def offload(self, discards: bool = False) -> None:
        self.awake.clear()

    async def reload(self) -> None:
        self.awake.set()


class Learner(FakeLearner):
    """Takes the lease for all that it computes, as a group of ranks does; some steps are skipped or lost."""

    def __init__(self, skipped: Sequence[int] = (), lost_at: Sequence[int] = ()) -> None:
        self._lost_at = list(lost_at)
        super().__init__(lambda step: self._made(step, skipped))
        self.lease: GpuLease
        self.engines: Engines
        self.changes = 0

    def _made(self, step: int, skipped: Sequence[int]) -> StepReport:
        assert not self.engines.awake.is_set()
        if step in self._lost_at:
            self._lost_at.remove(step)
            raise LearnerFailed("its process was lost")
        return StepReport({"loss": 0.1, "trained_tokens": 10.0}, applied=step not in skipped)

    async def step(self, sequences: Sequence[TrainSegment], version: int) -> StepReport:
        await self.lease.give_to_learner()
        return await super().step(sequences, version)

    async def snapshot(self) -> None:
        await self.lease.give_to_learner()
        await super().snapshot()

    async def load(self, folder: Path) -> None:
        await self.lease.give_to_learner()
        await super().load(folder)

    async def restart(self) -> None:
        await self.lease.give_to_restarted_learner()
        await super().restart()

    async def release_devices(self) -> None:
        self.alive()
        await self.lease.give_to_engines()

    async def offload(self) -> None:
        self.changes += 1

    async def reload(self) -> None:
        self.alive()


def with_gpu_lease(folder: Path, learner: Learner) -> Made:
    engines = Engines()
    learner.engines = engines
    learner.lease = engines.lease = GpuLease(engines, learner)
    return Made(folder, engines, staleness=0, learner=learner, interval=EACH_STEP, check_every_s=0.001, **RUN)


async def weights_without_lease(folder: Path) -> list[tuple[int, list[list[int]]]]:
    apart = Made(folder, staleness=0, interval=EACH_STEP, **RUN)
    await apart.loop.run()
    return apart.learner.weights


@pytest.mark.parametrize(
    "learner",
    [lambda: Learner(), lambda: Learner(lost_at=[1]), lambda: Learner(lost_at=[2, 5])],
    ids=["usual", "lost in the first step", "lost twice"],
)
async def test_the_same_is_learned_as_without_a_gpu_lease(tmp_path: Path, learner: type[Learner]) -> None:
    run = with_gpu_lease(tmp_path / "shared", learner())
    async with asyncio.timeout(20):
        await run.loop.run()
    assert run.learner.weights == await weights_without_lease(tmp_path / "apart")
    assert run.learner.changes >= RUN["steps"]


async def test_engines_go_on_after_an_update_that_was_not_applied(tmp_path: Path) -> None:
    run = with_gpu_lease(tmp_path, Learner(skipped=[1, 4]))
    async with asyncio.timeout(20):
        state = await run.loop.run()
    assert (state.step, state.version) == (RUN["steps"], RUN["steps"] - 2)


async def test_engines_go_on_when_a_learner_that_rests_is_lost(tmp_path: Path) -> None:
    """Before the first update, when there are no weights to publish."""
    run = with_gpu_lease(tmp_path, Learner())

    async def lose() -> None:
        await run.rollouts.awake.wait()  # type: ignore[attr-defined]
        run.learner.lose(LearnerFailed("its process was lost"))

    async with asyncio.timeout(20):
        losing = asyncio.create_task(lose())
        await run.loop.run()
    await losing
    assert run.learner.restarts == 1 and run.learner.weights == await weights_without_lease(tmp_path / "apart")


async def test_a_resumed_run_samples_again(tmp_path: Path) -> None:
    first = with_gpu_lease(tmp_path, Learner())
    await first.loop.run()
    resumed = with_gpu_lease(tmp_path, Learner())
    async with asyncio.timeout(20):
        await resumed.loop.resume()
        state = await resumed.loop.run()
    assert state.step == RUN["steps"]
