"""The loop with fakes: staleness, order, replacement, starvation, checkpoints, resuming and stopping."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Container
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_rft.errors import EndpointRefused, TrainingHalted
from agent_rft.events import (
    EngineLearnerGap,
    Evaluated,
    JobResumed,
    NothingLeftToLearn,
    NoToolCalls,
    UpdateSkipped,
    ZeroVarianceBatch,
)
from agent_rft.metrics import STEP_METRICS, find_metric
from agent_rft.types import GroupRequest, StepReport, ToolCall, ToolResult, Turn
from tests.support.builders import untrained
from tests.support.fakes import FakeLearner, FakeRollouts
from tests.support.fakes_http import until
from tests.support.loops import NEVER, Made

TOOL = {"type": "function", "function": {"name": "cat", "parameters": {}}}


@pytest.mark.parametrize("staleness", [0, 1, 3])
async def test_staleness_reaches_its_bound_but_never_exceeds_it(tmp_path: Path, staleness: int) -> None:
    made = Made(tmp_path, staleness=staleness, steps=8)
    await made.loop.run()
    observed = [metrics["staleness_max"] for metrics in made.sink.steps]
    assert len(observed) == 8
    assert max(observed) == staleness
    assert made.rollouts.published == list(range(1, 9))


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(i, marks=pytest.mark.nightly) for i in range(8, 20))])
async def test_staleness_is_bounded_for_any_outcome_and_timing_of_groups(tmp_path: Path, seed: int) -> None:
    """Includes batches that skip groups, small batches and late groups."""
    rng = random.Random(seed)
    staleness, size = rng.randrange(4), rng.randrange(1, 5)
    share_with_signal, late = rng.choice([0.4, 0.6, 0.8]), rng.choice([1, 10, 60])

    def grades(request: GroupRequest) -> list[float | None]:
        return [0.0, 1.0, 0.0, 1.0] if rng.random() < share_with_signal else [1.0] * 4

    rollouts = FakeRollouts(grades, delay=lambda request: rng.randrange(1, late + 1))
    made = Made(tmp_path, rollouts, staleness=staleness, batch_size=size, steps=30, validate=False)
    with suppress(TrainingHalted):  # by chance three batches in a row may have no signal
        await made.loop.run()
    assert made.sink.steps
    assert max(metrics["staleness_max"] for metrics in made.sink.steps) <= staleness


async def test_a_group_without_signal_makes_room_before_its_turn(tmp_path: Path) -> None:
    """Otherwise a batch whose first group is slow would wait for several rounds of new groups."""
    started: list[str] = []
    ended: list[str] = []
    others_ended = asyncio.Event()

    class FirstIsSlow(FakeRollouts):
        async def sample(self, request: GroupRequest) -> Any:
            started.append(request.task.row_id)
            group = await super().sample(request)
            if request.task.row_id == started[0]:
                await asyncio.wait_for(others_ended.wait(), 30)
            ended.append(request.task.row_id)
            if len(ended) == 3:
                others_ended.set()
            return group

    def grades(request: GroupRequest) -> list[float | None]:
        return [1.0] * 4 if len(started) in (2, 3) else [0.0, 1.0, 0.0, 1.0]

    made = Made(tmp_path, FirstIsSlow(grades), staleness=0, steps=1, validate=False)
    await made.loop.run()
    assert started[0] == ended[-1]
    assert len(ended) == 4  # two without signal and the one that trains, all before the slow one


async def test_with_staleness_zero_nothing_is_sampled_during_an_update(tmp_path: Path) -> None:
    rollouts = FakeRollouts()
    in_flight: list[int] = []

    def report(step: int) -> StepReport:
        in_flight.append(rollouts.in_flight)
        return StepReport({}, applied=True)

    made = Made(tmp_path, rollouts, staleness=0, learner=FakeLearner(report), validate=False)
    await made.loop.run()
    assert in_flight == [0] * 6


@pytest.mark.parametrize("staleness", [0, 1])
async def test_staleness_is_bounded_after_a_smaller_batch(tmp_path: Path, staleness: int) -> None:
    """Two of three rows have no signal, so that more groups are skipped than may be replaced."""
    rollouts = FakeRollouts(
        lambda r: [0.0, 1.0, 1.0, 0.0] if r.index % 3 == 2 else [1.0] * 4, lambda r: 3 + r.index % 3
    )
    made = Made(tmp_path, rollouts, staleness=staleness, batch_size=4, steps=8, n_epochs=30, validate=False)
    await made.loop.run()
    assert min(metrics["groups_trained"] for metrics in made.sink.steps) < 4
    assert max(metrics["staleness_max"] for metrics in made.sink.steps) <= staleness


async def test_slow_rows_are_trained_as_often_as_fast_ones(tmp_path: Path) -> None:
    rollouts = FakeRollouts(delay=lambda request: 200 if request.task.row_id == "0" else 1)
    made = Made(tmp_path, rollouts, staleness=2, steps=9, n_epochs=3, validate=False)
    await made.loop.run()
    trained = Counter(
        group.request.task.row_id for name, groups in made.sink.kept.items() if "step" in name for group in groups
    )
    assert trained == {str(i): 3 for i in range(6)}


async def test_a_batch_may_be_larger_than_the_file_and_continue_into_the_next_epoch(tmp_path: Path) -> None:
    made = Made(tmp_path, num_rows=3, batch_size=4, steps=3, n_epochs=4, validate=False)
    await made.loop.run()
    trained = [request for _, request in made.train_requests]
    assert Counter(request.task.row_id for request in trained) == {"0": 4, "1": 4, "2": 4}
    assert [request.epoch for request in trained] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


async def test_zero_variance_groups_are_counted_and_replaced_by_new_rows(tmp_path: Path) -> None:
    def grades(request: GroupRequest) -> list[float | None]:
        fixed: dict[str, list[float | None]] = {"0": [1.0] * 4, "1": [0.0] * 4, "2": [0.4] * 4}
        return fixed.get(request.task.row_id, [0.0, 1.0, 1.0, 0.0])

    made = Made(tmp_path, FakeRollouts(grades), steps=3, validate=False)
    await made.loop.run()
    assert [metrics["groups_trained"] for metrics in made.sink.steps] == [2.0] * 3
    totals: Counter[str] = Counter()
    for metrics in made.sink.steps:
        totals.update({k: int(v) for k, v in metrics.items() if k.startswith("zero_variance_groups/")})
    assert set(totals) == {f"zero_variance_groups/{kind}" for kind in ("all_right", "all_wrong", "equal")}


async def test_discarded_rollouts_do_not_affect_advantages(tmp_path: Path) -> None:
    made = Made(tmp_path, FakeRollouts(lambda request: [None, 1.0, None, 0.0]), steps=1, validate=False)
    await made.loop.run()
    ((_, sequences),) = made.learner.batches
    assert [sequence.advantage for sequence in sequences] == [0.5, -0.5] * 2
    assert made.sink.steps[0]["discarded/tool_failed"] == 4.0


class Untrained(FakeRollouts):
    """Rollouts of which the first ones are not trained on."""

    def __init__(self, grades: list[float], num_untrained: int) -> None:
        super().__init__(lambda request: grades)
        self._num_untrained = num_untrained

    async def sample(self, request: GroupRequest) -> Any:
        made = await super().sample(request)
        n = self._num_untrained if request.purpose == "train" else 0
        return replace(made, rollouts=(*map(untrained, made.rollouts[:n]), *made.rollouts[n:]))


async def test_rollout_with_train_false_counts_in_grade_means_only(tmp_path: Path) -> None:
    made = Made(tmp_path, Untrained([0.8, 0.0, 1.0, 0.0], 1), steps=1, validate=False)
    await made.loop.run()
    ((_, sequences),) = made.learner.batches
    assert [sequence.advantage for sequence in sequences] == pytest.approx([-1 / 3, 2 / 3, -1 / 3] * 2)
    (metrics,) = made.sink.steps
    assert metrics["train_mean_grade"] == pytest.approx(0.45)
    assert (metrics["rollouts_graded"], metrics["rollouts_untrained"]) == (8.0, 2.0)
    assert not [name for name in metrics if name.startswith("discarded/")]


async def test_deviation_ignores_rollout_with_train_false(tmp_path: Path) -> None:
    made = Made(tmp_path, Untrained([9.0, 0.0, 1.0, 0.0], 1), steps=1, validate=False, advantage="grpo")
    await made.loop.run()
    ((_, sequences),) = made.learner.batches
    std = (2 / 9 + 4 / 9) ** 0.5 / 2**0.5
    assert [s.advantage for s in sequences] == pytest.approx([-1 / 3 / std, 2 / 3 / std, -1 / 3 / std] * 2)


async def test_group_whose_trained_grades_are_equal_has_no_variance(tmp_path: Path) -> None:
    made = Made(tmp_path, Untrained([0.0, 1.0, 1.0, 1.0], 1), steps=1, validate=False)
    with pytest.raises(TrainingHalted, match="every answer is already right"):
        await made.loop.run()
    assert made.sink.of(ZeroVarianceBatch)[0].zero_variance == {"all_right": 4.0}


async def test_groups_with_fewer_than_two_trained_rollouts_are_lost(tmp_path: Path) -> None:
    made = Made(tmp_path, Untrained([0.0, 1.0, 0.0, 1.0], 3), validate=False)
    with pytest.raises(TrainingHalted, match=r"4 of 4 groups lost.*answered `train: false` for most rollouts"):
        await made.loop.run()
    assert made.learner.batches == [] and made.sink.of(ZeroVarianceBatch)[0].num_lost == 4


async def test_starvation_warns_and_then_stops_the_job(tmp_path: Path) -> None:
    made = Made(tmp_path, FakeRollouts(lambda request: [0.0] * 4), validate=False)
    with pytest.raises(TrainingHalted, match=r"4 of 4 groups all wrong.*all rollouts of each row are identical"):
        await made.loop.run()
    assert [event.times for event in made.sink.of(ZeroVarianceBatch)] == [1, 2, 3]
    assert made.sink.of(ZeroVarianceBatch)[0].zero_variance == {"all_wrong": 4.0}
    assert made.learner.batches == []


async def test_a_job_that_has_learned_all_ends_with_its_last_checkpoint(tmp_path: Path) -> None:
    def grades(request: GroupRequest) -> list[float]:
        return [1.0] * 4 if made.rollouts.version == 2 else [0.0, 1.0, 1.0, 0.0]

    made = Made(tmp_path, FakeRollouts(grades), staleness=0, steps=6, validate=False, interval=NEVER)
    state = await made.loop.run()
    assert state.step == 2 and not made.loop.has_stopped_early
    assert made.sink.events[-1] == NothingLeftToLearn(step=2, total_steps=6)
    latest = made.checkpoints.latest()
    assert latest is not None and latest[1].step == 2


async def test_a_job_whose_first_answers_are_all_right_has_nothing_to_train(tmp_path: Path) -> None:
    made = Made(tmp_path, FakeRollouts(lambda request: [1.0] * 4), validate=False)
    with pytest.raises(TrainingHalted, match="every answer is already right; use harder rows"):
        await made.loop.run()


async def test_the_segments_of_a_rollout_share_its_advantage_and_follow_each_other(tmp_path: Path) -> None:
    class Rewritten(FakeRollouts):
        async def sample(self, request: GroupRequest) -> Any:
            made = await super().sample(request)
            one, *others = made.rollouts
            return replace(made, rollouts=(replace(one, segments=one.segments * 3), *others))

    made = Made(tmp_path, Rewritten(), steps=1, validate=False)
    await made.loop.run()
    ((_, sequences),) = made.learner.batches
    assert [sequence.segment for sequence in sequences] == [0, 1, 2, 0, 0, 0] * 2
    assert [sequence.advantage for sequence in sequences] == [-0.5] * 3 + [0.5, -0.5, 0.5] + [-0.5] * 3 + [
        0.5,
        -0.5,
        0.5,
    ]
    (metrics,) = made.sink.steps
    assert metrics["segments_mean"] == 1.5
    assert metrics["rollout_tokens_mean"] == 7.5
    assert metrics["completion_tokens_mean"] == 4.5


class Offered(FakeRollouts):
    """Rollouts of rows with a tool; those sampled by policy versions in `calling` call it."""

    def __init__(self, calling: Container[int], **options: Any) -> None:
        super().__init__(**options)
        self._calling = calling

    async def sample(self, request: GroupRequest) -> Any:
        made = await super().sample(replace(request, task=replace(request.task, tools=(TOOL,))))
        calls = (ToolCall("c", "cat", "{}"),) if made.newest_version in self._calling else ()
        turn = Turn(2, 5, "text", calls, tuple(ToolResult("c", "x") for _ in calls))
        return replace(made, rollouts=tuple(replace(r, turns=(turn,)) for r in made.rollouts))


async def test_steps_whose_rollouts_call_no_tool_are_reported_once_until_one_does(tmp_path: Path) -> None:
    made = Made(tmp_path, Offered({2}), staleness=0, steps=6, validate=False)
    await made.loop.run()
    assert made.sink.of(NoToolCalls) == [NoToolCalls(step=1, num_rollouts=8), NoToolCalls(step=4, num_rollouts=8)]
    calling = Made(tmp_path / "calling", Offered(range(9)), steps=3, validate=False)
    await calling.loop.run()
    without = Made(tmp_path / "without", steps=3, validate=False)
    await without.loop.run()
    assert calling.sink.of(NoToolCalls) == without.sink.of(NoToolCalls) == []


async def test_a_starved_job_says_that_no_tool_was_called(tmp_path: Path) -> None:
    made = Made(tmp_path, Offered((), grades=lambda request: [0.0] * 4), validate=False)
    with pytest.raises(TrainingHalted):
        await made.loop.run()
    assert made.sink.of(NoToolCalls) == [NoToolCalls(step=1, num_rollouts=16)]
    assert {event.cause for event in made.sink.of(ZeroVarianceBatch)} == {"no_calls"}


async def test_an_endpoint_that_refuses_access_ends_the_job(tmp_path: Path) -> None:
    class Refusing(FakeRollouts):
        async def sample(self, request: GroupRequest) -> Any:
            raise EndpointRefused("http://tool answered 401")

    with pytest.raises(EndpointRefused, match="401"):
        await Made(tmp_path, Refusing(), validate=False).loop.run()
    with pytest.raises(EndpointRefused, match="401"):
        await Made(tmp_path, Refusing()).loop.run()


async def test_a_skipped_update_publishes_nothing_and_is_reported(tmp_path: Path) -> None:
    learner = FakeLearner(lambda step: StepReport({}, applied=step != 2))
    made = Made(tmp_path, learner=learner, steps=3, validate=False)
    state = await made.loop.run()
    assert made.rollouts.published == [1, 2]
    assert (state.step, state.version) == (3, 2)
    assert [event.step for event in made.sink.of(UpdateSkipped)] == [2]
    assert ["time_sync_s" in metrics for metrics in made.sink.steps] == [True, False, True]


async def test_each_part_of_a_step_is_timed_and_the_parts_are_no_longer_than_the_step(tmp_path: Path) -> None:
    made = Made(tmp_path, steps=2, eval_interval=2)
    await made.loop.run()
    *parts, whole = (name for name in STEP_METRICS if name.startswith("time_"))
    assert whole == "time_step_s"
    assert set(parts) <= made.sink.steps[-1].keys()
    assert sum(made.sink.steps[-1][part] for part in parts) <= made.sink.steps[-1][whole]


async def test_engine_and_learner_that_disagree_stop_the_job(tmp_path: Path) -> None:
    def report(step: int) -> StepReport:
        return StepReport({"logprob_gap": 0.2 if step == 1 else 0.9, "logprob_gap_tokens": 200.0}, applied=True)

    learner = FakeLearner(report)
    made = Made(tmp_path, learner=learner, validate=False)
    with pytest.raises(TrainingHalted, match="different log-probabilities"):
        await made.loop.run()
    assert [event.gap_nats for event in made.sink.of(EngineLearnerGap)] == [0.2]
    assert len(learner.batches) == 2


async def test_a_difference_of_a_few_tokens_neither_warns_nor_stops_the_job(tmp_path: Path) -> None:
    metrics = {"logprob_gap": 0.9, "importance_ratio_same_version": 9.0, "logprob_gap_tokens": 199.0}
    made = Made(tmp_path, learner=FakeLearner(lambda step: StepReport(metrics, applied=True)), validate=False)
    await made.loop.run()
    assert made.sink.of(EngineLearnerGap) == [] and made.sink.steps[-1]["logprob_gap"] == 0.9


async def test_an_importance_ratio_far_from_one_stops_the_job(tmp_path: Path) -> None:
    metrics = {"logprob_gap": 0.01, "importance_ratio_same_version": 4.0, "logprob_gap_tokens": 200.0}
    made = Made(tmp_path, learner=FakeLearner(lambda step: StepReport(metrics, applied=True)), validate=False)
    with pytest.raises(TrainingHalted, match=r"mean importance ratio 4\.000"):
        await made.loop.run()


async def test_the_whole_validation_file_is_graded_before_the_first_step_and_at_each_interval(tmp_path: Path) -> None:
    made = Made(tmp_path)
    await made.loop.run()
    graded = [(version, r.task.row_id) for version, r in made.rollouts.requests if r.purpose == "validation"]
    assert graded == [(version, f"v{i}") for version in (0, 2, 4, 6) for i in range(3)]
    assert [metrics["step"] for metrics in made.sink.steps if "full_valid_rollouts" in metrics] == [2.0, 4.0, 6.0]
    assert [event.step for event in made.sink.of(Evaluated)] == [0, 2, 4, 6]


@pytest.mark.parametrize(("given", "used"), [(None, 1.0), (0.0, 0.0)])
async def test_validations_may_sample_at_a_temperature_of_their_own(
    tmp_path: Path, given: float | None, used: float
) -> None:
    run = Made(tmp_path, eval_temperature=given)
    await run.loop.run()
    found = {request.purpose: request.temperature for _, request in run.rollouts.requests}
    assert found == {"train": 1.0, "validation": used}


async def test_the_best_three_checkpoints_and_the_last_are_kept(tmp_path: Path) -> None:
    scores = {1: 0.9, 2: 0.8, 3: 0.1, 4: 0.7, 5: 0.2, 6: 0.3}

    class Scored(FakeRollouts):
        async def sample(self, request: GroupRequest) -> Any:
            if request.purpose == "validation":
                self._grades = lambda request: [scores.get(self.version, 0.0)]
            else:
                self._grades = lambda request: [0.0, 1.0, 0.0, 1.0]
            return await super().sample(request)

    made = Made(tmp_path, Scored(), staleness=0, eval_interval=1)
    await made.loop.run()
    assert [state.step for _, state in made.checkpoints.list_all()] == [1, 2, 4, 6]


async def test_stopping_saves_a_checkpoint_of_the_last_update(tmp_path: Path) -> None:
    learner = FakeLearner()
    made = Made(tmp_path, learner=learner, steps=100, eval_interval=50)

    def report(step: int) -> StepReport:
        if step == 7:
            made.loop.stop()
        return StepReport({}, applied=True)

    learner._report = report
    state = await made.loop.run()
    assert state.step == 7
    latest = made.checkpoints.latest()
    assert latest is not None
    assert latest[1].step == 7
    assert made.rollouts.in_flight == 0


async def test_stopping_does_not_wait_for_rollouts(tmp_path: Path) -> None:
    made = Made(tmp_path, FakeRollouts(delay=lambda request: 10**9), validate=False)
    run = asyncio.create_task(made.loop.run())
    await until(lambda: made.rollouts.in_flight > 0)
    made.loop.stop()
    state = await run
    assert state.step == 0
    assert made.rollouts.in_flight == 0


async def test_a_checkpoint_has_the_metrics_of_its_step_except_its_own_cost(tmp_path: Path) -> None:
    made = Made(tmp_path, steps=2)
    await made.loop.run()
    latest = made.checkpoints.latest()
    assert latest is not None
    reported = made.sink.steps[-1]
    assert reported.keys() - latest[1].metrics.keys() == {"time_checkpoint_s"}
    later = {"time_step_s", "elapsed_s"}
    assert {k: v for k, v in reported.items() if k in latest[1].metrics.keys() - later} == {
        k: v for k, v in latest[1].metrics.items() if k not in later
    }
    assert latest[1].metrics["full_valid_rollouts"] == 3.0


async def test_a_resumed_job_skips_and_repeats_no_row(tmp_path: Path) -> None:
    first = Made(tmp_path, steps=12, n_epochs=4, eval_interval=5, validate=False)
    first.learner._report = lambda step: (first.loop.stop() if step == 5 else None) or StepReport({}, applied=True)
    await first.loop.run()
    latest = first.checkpoints.latest()
    assert latest is not None

    second = Made(tmp_path, steps=12, n_epochs=4, eval_interval=5, validate=False)
    await second.loop.resume()
    state = await second.loop.run()
    assert state.step == 12
    assert second.learner.loaded == [latest[0]]
    assert [event.step for event in second.sink.of(JobResumed)] == [5]
    assert second.rollouts.published[0] == latest[1].version
    names = {**first.sink.kept, **second.sink.kept}
    trained = [group.request for name in sorted(names) for group in names[name]]
    for epoch in range(4):
        assert sorted(r.task.row_id for r in trained if r.epoch == epoch) == [str(i) for i in range(6)]


async def test_every_metric_of_a_step_is_in_the_list(tmp_path: Path) -> None:
    made = Made(tmp_path, FakeRollouts(lambda request: [None, 1.0, 0.0, 1.0]), steps=4)
    await made.loop.run()
    names = {name for metrics in made.sink.steps for name in metrics}
    assert [name for name in sorted(names) if find_metric(name) is None] == []
