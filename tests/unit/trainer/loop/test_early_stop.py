"""Early stop: a job ends once its validations stop gaining, and an interrupted run counts as an undisturbed one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_rft.events import BestCheckpointUncertain, EarlyStopped, Evaluated, ValidationInsufficient
from agent_rft.metrics.missing_rollouts import ValidationScore
from agent_rft.spec.job import CheckpointInterval, EarlyStop
from agent_rft.trainer.loop.checkpoint import LOOP_STATE_FILE, Checkpoints, LoopState, best_checkpoint
from agent_rft.trainer.loop.journal import Journal
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


# -- rollouts without a grade ------------------------------------------------------------------------------------------


class PartlyValidated(FakeRollouts):
    """The three rows of the validation at each version have the rewards in `validations`; None is never graded."""

    def __init__(self, *validations: Sequence[float | None]) -> None:
        super().__init__(self._reward)
        self._validations = validations

    def _reward(self, request: GroupRequest) -> list[float | None]:
        trains = request.purpose == "train"
        return [0.0, 1.0, 0.0, 1.0] if trains else [self._validations[self.version][request.index]]


def partly(folder: Path, *validations: Sequence[float | None], **changes: Any) -> Made:
    settings = {"steps": len(validations) - 1, "n_epochs": 9, "eval_interval": 1, "staleness": 0, "interval": NEVER}
    return Made(folder, PartlyValidated(*validations), **settings | changes)


def best_step(folder: Path) -> int:
    best = best_checkpoint(folder / "checkpoints")
    assert best is not None
    return best[1].step


async def test_the_best_checkpoint_is_better_in_the_rows_that_were_graded_in_both(tmp_path: Path) -> None:
    """Step 2 lacks its hardest row, so its mean is the highest, but in the other rows it is worse than step 1."""
    run = partly(tmp_path, [0.0, 0.0, 0.0], [0.9, 0.9, 0.0], [0.8, 0.8, None])
    await run.loop.run()
    rewards = {state.step: state.valid_reward for _, state in run.checkpoints.list_all()}
    assert rewards == {1: pytest.approx(0.6), 2: pytest.approx(0.8)}
    assert best_step(tmp_path) == 1 and not run.sink.of(ValidationInsufficient)


async def test_early_stopping_compares_the_rows_that_were_graded_in_both(tmp_path: Path) -> None:
    """By their means, steps 2 and 3 would be gains."""
    stages = [0.0, 0.0, 0.0], [0.6, 0.6, 0.0], [0.55, 0.55, None], [0.6, 0.6, None], [1.0, 1.0, 1.0]
    run = partly(tmp_path, *stages, early_stop=EarlyStop(patience=2))
    state = await run.loop.run()
    assert state.step == 3 and best_step(tmp_path) == 1
    assert state.valid_rewards == pytest.approx([0.0, 0.4, 0.35, 0.4])
    [stopped] = run.sink.of(EarlyStopped)
    assert stopped.best_step == 1


async def test_later_validations_are_compared_with_a_best_one_that_lacks_a_row(tmp_path: Path) -> None:
    """Step 2 is worse than step 1 in both rows of step 1, although its mean is higher."""
    stages = [0.0, 0.0, 0.0], [0.5, 0.5, None], [0.4, 0.4, 1.0], [0.5, 0.6, 0.0]
    run = partly(tmp_path, *stages, early_stop=EarlyStop(patience=2))
    state = await run.loop.run()
    assert state.step == 3 and not run.sink.of(EarlyStopped), "step 3 is a gain"
    assert best_step(tmp_path) == 3


async def test_a_validation_that_lacks_too_many_rows_neither_is_best_nor_counts(tmp_path: Path) -> None:
    lost = [1.0, None, None]
    run = partly(tmp_path, [0.0] * 3, [0.5] * 3, lost, lost, [0.4] * 3, lost, [0.3] * 3, [0.2] * 3, steps=7)
    state = await run.loop.run()
    assert best_step(tmp_path) == 1 and state.valid_rewards == pytest.approx([0.0, 0.5, 0.4, 0.3, 0.2])
    assert run.sink.of(ValidationInsufficient) == [
        ValidationInsufficient(step=step, num_missing=2, num_rollouts=3, reasons={"tool_failed": 2})
        for step in (2, 3, 5)
    ]
    assert not run.sink.of(BestCheckpointUncertain)
    assert [m["full_valid_missing_rollouts"] for m in run.sink.steps] == [0, 2, 2, 0, 2, 0, 0]
    metrics = run.sink.steps[1]
    bounds = metrics["full_valid_grade_if_wrong"], metrics["full_valid_grade_if_right"]
    assert bounds == pytest.approx((1 / 3, 1.0)) and metrics["full_valid_mean_grade"] == 1.0


async def test_a_validation_that_lacks_too_many_rows_does_not_count_against_patience(tmp_path: Path) -> None:
    lost = [0.0, None, None]
    stages = [0.5] * 3, lost, lost, [0.4] * 3, lost, [0.3] * 3, [1.0] * 3
    run = partly(tmp_path, *stages, early_stop=EarlyStop(patience=2))
    assert (await run.loop.run()).step == 5, "steps 3 and 5 count"


async def test_without_a_sufficient_validation_the_one_with_the_fewest_missing_rows_is_best(tmp_path: Path) -> None:
    lost, most = [1.0, None, None], [None, None, None]
    run = partly(tmp_path, [0.0] * 3, most, [0.5, None, None], lost, most)
    await run.loop.run()
    assert best_step(tmp_path) == 3, "of two with equally many missing rows, the better one"
    assert run.sink.of(BestCheckpointUncertain) == [
        BestCheckpointUncertain(step=4, best_step=3, num_missing=2, num_rollouts=3)
    ]
    assert len(run.sink.of(ValidationInsufficient)) == 4


@pytest.mark.parametrize("interval", [NEVER, EACH_STEP])
async def test_a_run_with_missing_rows_that_is_killed_stops_at_the_same_step(
    tmp_path: Path, interval: CheckpointInterval
) -> None:
    stages = [
        [0.0] * 3,
        [0.6, 0.6, 0.0],
        [0.5, 0.5, None],
        [0.7, None, 0.0],
        [0.9, None, None],
        [0.6, 0.7, 0.0],
        [0.1] * 3,
    ]
    settings: dict[str, Any] = {"early_stop": EarlyStop(patience=3, min_gain=0.06), "interval": interval, "steps": 6}
    calm = partly(tmp_path / "calm", *stages, **settings)
    expected = await calm.loop.run()
    lives = [partly(tmp_path / "lost", *stages, **settings)]
    while True:
        run = lives[-1]
        run.learner._report = killed_in(len(lives) + 1)
        if len(lives) > 1:
            await run.loop.resume()
        try:
            state = await run.loop.run()
            break
        except Killed:
            lives.append(partly(tmp_path / "lost", *stages, **settings))
    assert len(lives) > 2
    assert (state.step, state.valid_rewards) == (expected.step, expected.valid_rewards)
    assert state.best_score == expected.best_score
    assert best_step(tmp_path / "lost") == best_step(tmp_path / "calm")


async def test_a_run_folder_of_0_2_0_goes_on_with_its_mean_rewards(tmp_path: Path) -> None:
    """0.2.0 recorded no rewards by row, in checkpoints and in the journal."""
    early_stop = EarlyStop(patience=3)
    before = partly(tmp_path, [0.1] * 3, [0.5] * 3, [0.4] * 3, early_stop=early_stop)
    await before.loop.run()
    for path, _ in before.checkpoints.list_all():
        state = json.loads((path / LOOP_STATE_FILE).read_text())
        del state["score"], state["best_score"]
        (path / LOOP_STATE_FILE).write_text(json.dumps(state))
    assert best_step(tmp_path) == 1
    after = partly(tmp_path, *[[0.1] * 3] * 3, [0.3, 0.3, None], [0.6] * 3, [0.5] * 3, early_stop=early_stop, steps=5)
    after.rollouts.version = 2
    await after.loop.resume()
    state = await after.loop.run()
    assert state.valid_rewards == pytest.approx([0.1, 0.5, 0.4, 0.3, 0.6, 0.5]) and best_step(tmp_path) == 4


def test_a_state_without_a_best_score_takes_the_next_gain_as_the_best() -> None:
    state = LoopState(2, 2, 0, [], 0, None, valid_rewards=[0.5, 0.4])
    worse, better = ValidationScore({"a": 0.45}, 1), ValidationScore({"a": 0.6}, 1)
    assert state.with_validation(0.45, {}, worse).best_score is None
    found = state.with_validation(0.6, {}, better).best_score
    assert found is not None and found.row_rewards == {"a": 0.6} and found.scaled_reward == 0.6
    assert state.with_validation(0.6, {}, better, 0.2).best_score is None, "the gain is too small"


def test_a_step_without_a_validation_has_no_score() -> None:
    score = ValidationScore({"a": 1.0}, 1)
    state = LoopState(1, 1, 0, [], 0, None).with_validation(1.0, {}, score).without_validation({}, is_servable=False)
    assert (state.valid_reward, state.score, state.is_servable) == (None, None, False)
    assert state.valid_rewards == [1.0] and state.best_score is not None


async def test_the_journal_keeps_the_rewards_by_row_and_reads_records_of_0_2_0(tmp_path: Path) -> None:
    journal, score = Journal(tmp_path), ValidationScore({"a": 0.5, "b": 0.25}, 3, 1, 1)
    state = LoopState(4, 4, 0, [], 0, None, valid_rewards=[0.1])
    validated = state.with_validation(0.375, {"step": 4.0}, score)
    await journal.add_validation(validated)
    assert journal.with_validation(state, 0.0) == validated
    (tmp_path / "validated-000004.json").write_text(json.dumps({"reward": 0.375, "metrics": {"step": 4.0}}))
    found = journal.with_validation(state, 0.0)
    assert found is not None and found.valid_rewards == [0.1, 0.375] and found.score is None


async def test_rows_that_are_graded_when_they_are_repeated_count(tmp_path: Path) -> None:
    def rewards(request: GroupRequest) -> list[float | None]:
        if request.purpose == "train":
            return [0.0, 1.0, 0.0, 1.0]
        return [0.5 if request.samples or request.index == 0 else None]

    run = Made(tmp_path, FakeRollouts(rewards), steps=2, eval_interval=1, interval=NEVER)
    await run.loop.run()
    assert not run.sink.of(ValidationInsufficient)
    assert [event.evaluation.num_missing for event in run.sink.of(Evaluated)] == [0, 0, 0]
    assert [len(group.rollouts) for group in run.sink.kept["validation-000002"]] == [1, 1, 1]
