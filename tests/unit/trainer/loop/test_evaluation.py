"""Evaluations: partial credit counts in the mean, and passes at or above the threshold."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from agent_rft.events import Evaluated
from agent_rft.stored_events import parse_evaluation
from agent_rft.trainer.loop.evaluation import OutageWait, evaluate, score_validation, summarize
from agent_rft.types import Evaluation, Grade, Group, GroupRequest
from tests.support.builders import group, group_request, rollout, task
from tests.support.fakes import FakeRollouts


@pytest.mark.parametrize(("threshold", "passed"), [(1.0, 1 / 4), (0.5, 3 / 4), (0.51, 2 / 4), (0.0, 1.0)])
def test_partial_credit_counts_in_the_mean_and_passes_at_the_threshold(threshold: float, passed: float) -> None:
    groups = [group(group_request(i, 2, "validation"), grades) for i, grades in enumerate([(0.0, 0.5), (0.75, 1.0)])]
    evaluation = summarize(groups, 2, threshold)
    assert (evaluation.grade, evaluation.pass_rate) == (0.5625, passed)


def test_a_row_counts_once_however_many_of_its_rollouts_were_graded_and_lies_in_its_interval() -> None:
    grades = [*([1.0] * 4 for _ in range(3)), *([0.0, None, None, None] for _ in range(40))]
    evaluation = summarize([group(group_request(i, 4, "test"), row) for i, row in enumerate(grades)], 4, 1.0)
    assert evaluation.grade == evaluation.pass_rate == pytest.approx(3 / 43)
    for name in ("grade", "pass_rate"):
        low, high = evaluation.intervals[name]
        assert low <= getattr(evaluation, name) <= high


def test_the_held_out_grade_is_a_mean_over_the_rows_that_have_one() -> None:
    def graded(index: int, *held_out: float | None) -> Group:
        request = group_request(index, len(held_out), "test")
        made = (replace(rollout(request, i), grade=Grade(1.0, held_out=grade)) for i, grade in enumerate(held_out))
        return Group(request, tuple(made))

    evaluation = summarize([graded(0, 0.5, 0.0), graded(1, None, 0.75), graded(2, None, None)], 2, 1.0)
    assert (evaluation.grade, evaluation.held_out) == (1.0, 0.5)
    low, high = evaluation.intervals["held_out"]
    assert low < 0.5 < high
    without = summarize([graded(0, None, None)], 2, 1.0)
    assert math.isnan(without.held_out) and "held_out" not in without.intervals


# -- rollouts without a grade ------------------------------------------------------------------------------------------


class Failing(FakeRollouts):
    """`answers(request)` is whether a request is graded. Each row answers its own grade."""

    def __init__(self, answers: Callable[[GroupRequest], bool], right: Callable[[int], bool] = lambda row: True):
        def grades(request: GroupRequest) -> list[float | None]:
            return [float(right(request.index)) if answers(request) else None] * request.size

        super().__init__(grades)

    @property
    def repeated(self) -> list[GroupRequest]:
        return [request for _, request in self.requests if request.samples]


WAIT = OutageWait(max_s=60.0, first_probe_s=0.0)


async def evaluated(
    rollouts: FakeRollouts, num_rows: int, samples: int = 1, wait: OutageWait = WAIT
) -> tuple[Evaluation, list[Group]]:
    tasks = [task(str(i)) for i in range(num_rows)]
    return await evaluate(rollouts, tasks, "validation", samples, 1.0, 1.0, outage_wait=wait)


async def test_the_bounds_contain_the_truth_that_the_mean_misses() -> None:
    """45 of 100 answers are right. Wrong answers are longer, so 20 of the 25 rollouts that time out are wrong."""

    def lost(row: int) -> bool:
        return row < 5 or row >= 80

    found, _ = await evaluated(Failing(lambda request: not lost(request.index), lambda row: row < 45), 100)
    assert found.grade == pytest.approx(0.533, abs=5e-4), "the mean of the graded rollouts is biased"
    assert (found.num_rollouts, found.num_missing) == (75, 25)
    assert found.missing_bounds == {"grade": (0.4, 0.65), "reward": (0.4, 0.65), "pass_rate": (0.4, 0.65)}
    low, high = found.missing_bounds["grade"]
    assert low <= 0.45 <= high
    sentence = str(Evaluated(step=4, name="validation", evaluation=found))
    assert sentence.startswith("validation at step 4: grade 0.533 [")
    assert sentence.endswith(
        "(75 rollouts of 75 rows); 25 of 100 rollouts have no grade: the mean grade is 0.400 if all missing "
        "rollouts count as wrong, and 0.650 if all count as right"
    )
    assert parse_evaluation(found.as_dict()) == found


async def test_the_bounds_are_those_of_the_graders_range() -> None:
    groups = [group(group_request(i, 1, "test"), grades) for i, grades in enumerate([[4.0], [None]])]
    assert summarize(groups, 1, 5.0, (0.0, 5.0)).missing_bounds == {
        "grade": (2.0, 4.5),
        "reward": (2.0, 4.5),
        "pass_rate": (0.0, 0.5),
    }
    assert summarize(groups[1:], 1, 1.0).missing_bounds["grade"] == (0.0, 1.0)


async def test_without_missing_rollouts_there_are_no_bounds_and_no_repetition() -> None:
    rollouts = Failing(lambda request: True)
    found, _ = await evaluated(rollouts, 3)
    assert found.num_missing == 0 and found.missing_bounds == {} and not rollouts.repeated
    assert "no grade" not in str(Evaluated(step=4, name="validation", evaluation=found))


def test_an_evaluation_of_0_2_0_has_no_bounds_but_the_number_of_missing_rollouts() -> None:
    stored = summarize([group(group_request(0, 2, "test"), [1.0, None])], 2, 1.0).as_dict()
    del stored["missing_bounds"]
    found = parse_evaluation(stored)
    assert (found.num_missing, found.missing_note) == (1, "1 of 2 rollouts has no grade")


async def test_missing_rollouts_are_repeated_once() -> None:
    grades = {0: [1.0, None, 0.0, None], 1: [1.0] * 4, 2: [None] * 4}

    rollouts = FakeRollouts(lambda request: [0.5, *[None] * 3] if request.samples else grades[request.index])
    found, groups = await evaluated(rollouts, 3, 4)
    repeated = [request for _, request in rollouts.requests if request.samples]
    assert [(r.index, r.samples, r.size) for r in repeated] == [(0, (1, 3), 2), (2, (0, 1, 2, 3), 4)]
    assert [request.attempt for request in repeated] == [1, 1], "a repetition has its own trace ids"
    assert [[(r.sample, r.grade.value) for r in g.rollouts] for g in groups] == [
        [(0, 1.0), (1, 0.5), (2, 0.0)],
        [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0)],
        [(0, 0.5)],
    ]
    assert [g.missing_samples for g in groups] == [(3,), (), (1, 2, 3)]
    assert all(not g.request.samples and g.request.size == 4 for g in groups)
    assert found.num_missing == 4 and found.discarded == 10
    score = score_validation(groups, 4)
    assert score.row_rewards == {"0": 0.5, "1": 1.0, "2": 0.5} and score.num_missing == 4


async def test_after_an_outage_all_missing_rollouts_are_repeated_once_the_first_is_graded() -> None:
    rollouts = Failing(lambda request: bool(request.samples) or request.index >= 8)
    rollouts.is_down = True  # nothing calls the endpoint, so its breaker stays open until a probe closes it
    found, _ = await evaluated(rollouts, 10)
    assert found.num_missing == 0
    assert [request.index for request in rollouts.repeated] == list(range(8))


async def test_an_endpoint_is_probed_with_one_row_after_another_until_it_answers() -> None:
    class Recovering(Failing):
        async def has_outage(self) -> bool:
            return len(self.repeated) < 1  # another job's call closes the breaker

    rollouts = Recovering(lambda request: len(rollouts.repeated) > 1)
    found, _ = await evaluated(rollouts, 3)
    assert found.num_missing == 0
    found_requests = [(request.index, request.attempt) for request in rollouts.repeated]
    assert found_requests == [(0, 1), (1, 1), (2, 1), (0, 2)], "the failed probe is repeated"


@pytest.mark.parametrize("hangs", [False, True])
async def test_an_endpoint_that_stays_down_delays_an_evaluation_for_a_bounded_time(hangs: bool) -> None:
    class Down(Failing):
        async def sample(self, request: GroupRequest) -> Group:
            if hangs and request.samples:
                await asyncio.Event().wait()
            return await super().sample(request)

    rollouts = Down(lambda request: request.index == 0)
    rollouts.is_down = True
    found, _ = await evaluated(rollouts, 4, wait=OutageWait(0.05, 60.0))
    assert found.num_missing == 3
    assert len(rollouts.repeated) == (0 if hangs else 1), "only the probe was sampled"


def test_an_evaluation_in_which_nothing_was_graded_has_the_widest_bounds() -> None:
    found = summarize([group(group_request(0, 2, "test"), [None, None])], 2, 1.0)
    assert math.isnan(found.grade) and found.missing_bounds["grade"] == (0.0, 1.0)
