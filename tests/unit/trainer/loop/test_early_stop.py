"""Early stop: a job ends once its validations stop gaining, and an interrupted run counts as an undisturbed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_rft.events import EarlyStopped, Evaluated
from agent_rft.spec.job import CheckpointInterval, EarlyStop
from agent_rft.trainer.loop.checkpoint import Checkpoints, LoopState, best_checkpoint
from agent_rft.trainer.loop.validation import count_since_last_gain, should_stop
from agent_rft.types import Group, GroupRequest
from tests.support.fakes import FakeRollouts
from tests.support.loops import EACH_STEP, NEVER, Killed, Made, killed_in

REWARDS = [0.1, 0.3, 0.5, 0.4, 0.5, 0.45, 0.9, 0.9]
"""Rewards of the validations at each version: the best is at 2, and 3 to 5 bring no gain."""


class Validated(FakeRollouts):
    async def sample(self, request: GroupRequest) -> Group:
        trains = request.purpose == "train"
        self._grades = lambda request: [0.0, 1.0, 0.0, 1.0] if trains else [REWARDS[self.version]]
        return await super().sample(request)


def made(folder: Path, early_stop: EarlyStop | None = None, **changes: Any) -> Made:
    settings = {"steps": 7, "n_epochs": 4, "eval_interval": 1, "staleness": 0, "interval": NEVER}
    return Made(folder, Validated(), early_stop=early_stop or EarlyStop(patience=3), **settings | changes)


@pytest.mark.parametrize(
    ("rewards", "min_gain", "count"),
    [
        ([], 0.0, 0),
        ([-1.0], 0.5, 0),
        ([0.5, 0.5], 0.0, 1),
        ([0.5, 0.6, 0.5, 0.6], 0.0, 2),
        ([0.5, 0.58, 0.65], 0.1, 0),
        ([0.5, 0.6, 0.55], 0.25, 2),
    ],
)
def test_a_gain_exceeds_the_best_before_it_by_more_than_the_least(
    rewards: list[float], min_gain: float, count: int
) -> None:
    assert count_since_last_gain(rewards, min_gain) == count
    assert not should_stop(EarlyStop(patience=count + 1, min_gain=min_gain), rewards)
    assert count == 0 or should_stop(EarlyStop(patience=count, min_gain=min_gain), rewards)
    assert not should_stop(None, rewards)


async def test_a_job_ends_after_its_patience_with_the_best_checkpoint(tmp_path: Path) -> None:
    run = made(tmp_path)
    state = await run.loop.run()
    assert state.step == 5 and run.loop.has_stopped_early
    [stopped] = run.sink.of(EarlyStopped)
    assert stopped == EarlyStopped(step=5, best_step=2, best_reward=0.5, total_steps=7)
    assert run.sink.events[-1] == stopped, "its checkpoints are complete by then"
    best, latest = best_checkpoint(tmp_path / "checkpoints"), run.checkpoints.latest()
    assert best is not None and best[0].name == "step-000002"
    assert latest is not None and latest[1].step == 5


async def test_the_start_model_is_the_first_best(tmp_path: Path) -> None:
    run = made(tmp_path, EarlyStop(patience=1, min_gain=0.5))
    assert (await run.loop.run()).step == 1


async def test_a_job_that_gains_or_has_no_early_stop_takes_all_its_steps(tmp_path: Path) -> None:
    for name, early_stop in (("patient", EarlyStop(patience=4)), ("off", EarlyStop(patience=1_000))):
        run = made(tmp_path / name, early_stop)
        assert (await run.loop.run()).step == 7
        assert not run.loop.has_stopped_early and not run.sink.of(EarlyStopped)


async def test_a_last_validation_without_gain_stops_nothing_early(tmp_path: Path) -> None:
    run = made(tmp_path, steps=5)
    assert (await run.loop.run()).step == 5
    assert not run.loop.has_stopped_early and not run.sink.of(EarlyStopped)


@pytest.mark.parametrize("interval", [NEVER, EACH_STEP, CheckpointInterval(minutes=None, steps=3)])
@pytest.mark.parametrize("every", [1, 2])
async def test_a_run_that_is_stopped_at_each_step_counts_as_an_undisturbed_one(
    tmp_path: Path, interval: CheckpointInterval, every: int
) -> None:
    """Each life ends in an update as by a kill: a validation before it may be in the journal only."""
    patience = EarlyStop(patience=3 - every, min_gain=0.05)
    calm = made(tmp_path / "calm", patience, eval_interval=every, interval=interval)
    expected = await calm.loop.run()
    assert expected.step < 7

    lives = [made(tmp_path / "lost", patience, eval_interval=every, interval=interval)]
    while True:
        run = lives[-1]
        run.learner._report = killed_in(len(lives) + 1)
        if len(lives) > 1:
            await run.loop.resume()
        try:
            state = await run.loop.run()
            break
        except Killed:
            lives.append(made(tmp_path / "lost", patience, eval_interval=every, interval=interval))
    assert state.step == expected.step and state.valid_rewards == expected.valid_rewards
    assert len(lives) > 2
    graded = [event.step for life in lives for event in life.sink.of(Evaluated)]
    assert graded == [event.step for event in calm.sink.of(Evaluated)], "no validation is repeated"
    assert lives[-1].sink.of(EarlyStopped) == calm.sink.of(EarlyStopped)


async def test_a_run_that_stopped_early_goes_on_with_more_patience(tmp_path: Path) -> None:
    assert (await made(tmp_path).loop.run()).step == 5
    again = made(tmp_path)
    await again.loop.resume()
    assert (await again.loop.run()).step == 5, "it ends at once"
    assert again.sink.of(EarlyStopped) and not again.train_requests
    further = made(tmp_path, EarlyStop(patience=4))
    await further.loop.resume()
    assert (await further.loop.run()).step == 7


async def test_a_validation_that_graded_nothing_does_not_count(tmp_path: Path) -> None:
    state = LoopState(1, 1, 0, [], 0, None, valid_rewards=[0.5])
    assert state.with_validation(float("nan"), {}).valid_rewards == [0.5]
    assert state.with_validation(None, {}).valid_rewards == [0.5]
    assert state.with_validation(0.4, {}).valid_rewards == [0.5, 0.4]


async def test_the_best_checkpoint_is_one_that_is_servable(tmp_path: Path) -> None:
    async def nothing(folder: Path) -> None: ...

    assert best_checkpoint(tmp_path) is None
    checkpoints = Checkpoints(tmp_path)
    for step, reward, is_servable in ((1, 0.5, True), (2, 0.5, True), (3, float("nan"), True), (4, 0.9, False)):
        await checkpoints.save(LoopState(step, step, 0, [], 0, reward, is_servable=is_servable), nothing)
    best = checkpoints.best()
    assert best is not None and best[1].step == 1, "of equal ones the earliest"
