"""Evaluations: partial credit counts in the mean, and passes at or above the threshold."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from agent_rft.trainer.loop.evaluation import summarize
from agent_rft.types import Grade, Group
from tests.support.builders import group, group_request, rollout


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
