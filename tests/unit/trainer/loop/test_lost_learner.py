"""What a lost learner costs: it starts again and catches up, while engines never go back to an older version."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from agent_rft.errors import LearnerFailed
from agent_rft.events import CheckpointSaved, LearnerRestarted
from agent_rft.types import Group, GroupRequest, StepReport, SyncReport
from tests.support.fakes import FakeLearner
from tests.support.loops import (
    EACH_STEP,
    NEVER,
    Numbered,
    counting,
    made,
    some_without_signal,
    undisturbed,
)


@pytest.mark.parametrize("lost_in", ["step", "snapshot", "write", "publish"])
async def test_a_lost_learner_starts_again_and_catches_up(tmp_path: Path, lost_in: str) -> None:
    expected = await undisturbed(tmp_path / "calm")
    failure = LearnerFailed("learner rank 1 of 2 failed in step: its process was lost", ranks=[1])

    class Mortal(FakeLearner):
        times = 0

        async def snapshot(self) -> None:
            self._maybe("snapshot")
            await super().snapshot()

        async def write_snapshot(self, folder: Path) -> None:
            self._maybe("write")
            await super().write_snapshot(folder)

        def _maybe(self, what: str) -> None:
            self.times += what == lost_in
            if what == lost_in and self.times == 2:
                self.lose(failure)

    class Publishing(Numbered):
        async def publish(self, version: int) -> Any:
            learner.alive()
            if lost_in == "publish" and version == 6 and not learner.restarts:
                learner.lose(failure)
                learner.alive()
            return await super().publish(version)

    def report(step: int) -> StepReport:
        if lost_in == "step" and step == 6:
            raise failure
        return StepReport({}, applied=True)

    learner, sleeps = Mortal(report), list[float]()
    rollouts = Publishing(some_without_signal)
    run = made(tmp_path / "lost", learner=learner, rollouts=rollouts, sleep=counting(sleeps))
    state = await run.loop.run()
    assert (state.step, learner.restarts, sleeps) == (9, 1, [1.0])
    assert learner.weights == expected
    assert rollouts.published == sorted(rollouts.published), "a version went backwards"
    [restarted] = run.sink.of(LearnerRestarted)
    assert (restarted.cause, restarted.error_type) == (failure.message, type(failure).__name__)
    assert [saved.step for saved in run.sink.of(CheckpointSaved)] == [4, 8, 9]
    assert [metrics["step"] for metrics in run.sink.steps] == list(range(1, 10))
    assert len({request.index for _, request in run.train_requests}) == len(run.train_requests), "sampled twice"


async def test_engines_that_loaded_a_version_get_no_older_one_when_the_learner_is_lost_then(tmp_path: Path) -> None:
    class Loaded(Numbered):
        async def publish(self, version: int) -> Any:
            await super().publish(version)
            if version == 6 and not learner.restarts:  # the canary asks the learner after all engines have loaded
                learner.lose(LearnerFailed("its process was lost"))
            learner.alive()
            return SyncReport(version, 0.0, 0.0, 0)

    learner, rollouts = FakeLearner(), Loaded(some_without_signal)
    run = made(tmp_path / "lost", learner=learner, rollouts=rollouts, sleep=counting([]))
    await run.loop.run()
    assert learner.restarts == 1
    assert rollouts.published == sorted(rollouts.published)
    assert learner.weights == await undisturbed(tmp_path / "calm")


@pytest.mark.parametrize("lost_in", ["load", "step", "publish"])
async def test_a_learner_that_is_lost_while_a_run_resumes_trains_nothing_twice(tmp_path: Path, lost_in: str) -> None:
    """The driver was killed after validations whose checkpoints were not complete: the replay writes them."""

    class Unwritten(FakeLearner):
        async def write_snapshot(self, folder: Path) -> None:
            if len(self.batches) > 3:
                raise OSError(errno.EIO, "Input/output error")
            await super().write_snapshot(folder)

    with pytest.raises(OSError, match="Input/output"):
        await made(tmp_path / "lost", learner=Unwritten(), eval_interval=2, interval=NEVER).loop.run()

    class Mortal(FakeLearner):
        async def load(self, folder: Path) -> None:
            self.lose_in("load")
            await super().load(folder)

        async def step(self, sequences: Any, version: int) -> StepReport:
            if version == 4:
                self.lose_in("step")
            return await super().step(sequences, version)

        def lose_in(self, what: str) -> None:
            if what == lost_in and not self.restarts:
                self.lose(LearnerFailed("its process was lost"))

    class Publishing(Numbered):
        async def publish(self, version: int) -> Any:
            learner.lose_in("publish")
            learner.alive()
            return await super().publish(version)

    learner, rollouts = Mortal(), Publishing(some_without_signal)
    run = made(tmp_path / "lost", learner=learner, rollouts=rollouts, sleep=counting([]), eval_interval=2)
    await run.loop.resume(reported_steps={1, 2, 3, 4, 5})
    await run.loop.run()
    assert learner.restarts == 1
    assert learner.weights == await undisturbed(tmp_path / "calm")
    assert rollouts.published == sorted(rollouts.published)
    assert [metrics["step"] for metrics in run.sink.steps] == [6.0, 7.0, 8.0, 9.0]


async def test_a_learner_that_is_lost_in_the_last_checkpoint_writes_it_again(tmp_path: Path) -> None:
    class Mortal(FakeLearner):
        async def write_snapshot(self, folder: Path) -> None:
            if not self.restarts:
                self.lose(LearnerFailed("its process was lost"))
            await super().write_snapshot(folder)

    learner = Mortal()
    run = made(tmp_path, learner=learner, sleep=counting([]), interval=NEVER)
    learner._report = lambda step: (run.loop.stop() if step == 3 else None) or StepReport({}, applied=True)
    await run.loop.run()
    assert [(state.step, state.is_servable) for _, state in run.checkpoints.list_all()] == [(3, True)]


async def test_a_learner_that_is_lost_again_and_again_ends_the_job_with_the_first_cause(tmp_path: Path) -> None:
    causes = iter(["out of memory", "no peer", "no peer", "no peer"])

    def report(step: int) -> StepReport:
        if step > 3:
            raise LearnerFailed(next(causes))
        return StepReport({}, applied=True)

    learner, sleeps = FakeLearner(report), list[float]()
    run = made(tmp_path, learner=learner, sleep=counting(sleeps), interval=EACH_STEP)
    with pytest.raises(LearnerFailed, match=r"failed 4 times after step 3; the first error was: out of memory"):
        await run.loop.run()
    assert sleeps == [1.0, 10.0, 60.0]
    again = made(tmp_path)
    await again.loop.resume()
    assert (await again.loop.run()).step == 9
    assert again.learner.weights == await undisturbed(tmp_path / "calm")


async def test_a_step_in_between_renews_the_restarts(tmp_path: Path) -> None:
    lost = set(range(2, 40, 2))

    def report(step: int) -> StepReport:
        if step in lost:
            raise LearnerFailed("its process was lost")
        return StepReport({}, applied=True)

    run = made(tmp_path, learner=FakeLearner(report), sleep=counting([]), interval=EACH_STEP)
    assert (await run.loop.run()).step == 9
    assert run.learner.restarts > 4
    assert run.learner.weights == await undisturbed(tmp_path / "calm")


@pytest.mark.parametrize("purpose", ["train", "validation"])
async def test_a_learner_lost_while_all_engines_wait_for_its_weights_is_found(tmp_path: Path, purpose: str) -> None:
    """A node with rank 0 and the only engine is lost: the new engine needs weights that only a new rank 0 has."""
    found = asyncio.Event()

    class Found(FakeLearner):
        async def restart(self) -> None:
            await super().restart()
            found.set()

    class Waiting(Numbered):
        async def sample(self, request: GroupRequest) -> Group:
            if request.purpose == purpose and learner.weights[6:]:
                if not found.is_set():
                    learner.lose(LearnerFailed("its process was lost"))
                await found.wait()
            return await super().sample(request)

    learner, validates = Found(), purpose == "validation"
    rollouts = Waiting(some_without_signal)
    run = made(tmp_path / "lost", learner=learner, rollouts=rollouts, check_every_s=0.01, validate=validates)
    assert (await run.loop.run()).step == 9
    assert learner.restarts == 1
    assert learner.weights == await undisturbed(tmp_path / "calm")
