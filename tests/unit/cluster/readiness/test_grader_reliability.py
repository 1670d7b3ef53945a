"""A grader's noise, its steps and the held-out grader."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent_rft.cluster.readiness.grader_reliability import measure_grader
from agent_rft.types import Grade, Group
from tests.support.builders import group, group_request


def held_out(grades: list[float], others: list[float]) -> Group:
    made = group(group_request(), grades)
    graded = [
        replace(rollout, grade=Grade(rollout.grade.value, held_out=other))
        for rollout, other in zip(made.rollouts, others, strict=True)
    ]
    return replace(made, rollouts=tuple(graded))


def test_equal_grades_have_no_noise() -> None:
    groups = [group(group_request(), [0.0, 1.0, 0.5])]
    again = {rollout.trace_id: rollout.grade.value for rollout in groups[0].rollouts}
    found = measure_grader(groups, again)
    assert (found.regraded, found.changed, found.noise, found.distinct) == (3, 0.0, 0.0, 3)


def test_noise_is_half_the_squared_difference_over_the_variance_within_rows() -> None:
    groups = [group(group_request(), [0.0, 1.0])]
    ids = [rollout.trace_id for rollout in groups[0].rollouts]
    found = measure_grader(groups, {ids[0]: 0.5, ids[1]: 1.0})
    assert found.changed == 0.5
    assert found.noise == pytest.approx((0.25 + 0.0) / 2 / 2 / 0.5)


def test_what_could_not_be_graded_again_is_counted_and_says_nothing_of_the_noise() -> None:
    groups = [group(group_request(), [0.0, 1.0])]
    found = measure_grader(groups, {rollout.trace_id: None for rollout in groups[0].rollouts})
    assert (found.regraded, found.failed, found.changed, found.noise) == (0, 2, None, None)


def test_the_noise_is_that_of_the_grade_without_guards() -> None:
    made = group(group_request(), [0.0, 1.0])
    guarded = replace(made.rollouts[0], grade=Grade(0.0, {"ungated": 0.7}, guard="length"))
    groups = [replace(made, rollouts=(guarded, made.rollouts[1]))]
    assert measure_grader(groups, {guarded.trace_id: 0.7}).changed == 0.0


def test_a_guard_that_hides_grades_does_not_hide_their_noise() -> None:
    made = group(group_request(), [0.4, 0.6])
    zero = [replace(r, grade=Grade(0.0, {"ungated": r.grade.value}, guard="length")) for r in made.rollouts]
    plain, guarded = (made, replace(made, rollouts=(made.rollouts[0], zero[1])))
    again = {made.rollouts[0].trace_id: 0.6, made.rollouts[1].trace_id: 0.4}
    assert measure_grader([plain], again).noise == measure_grader([guarded], again).noise


def test_agreement_is_the_correlation_within_rows() -> None:
    opposed = measure_grader([held_out([0.0, 1.0], [0.2, 0.1])] * 3, {}).agreement
    assert opposed is not None and opposed.mean == pytest.approx(-1.0) and opposed.n == 3
    constant = measure_grader([held_out([0.0, 1.0], [0.3, 0.3])], {}).agreement
    assert constant is not None and constant.mean == 0.0
    assert measure_grader([held_out([1.0, 1.0], [0.3, 0.4])], {}).agreement is None
    assert measure_grader([group(group_request(), [0.0, 1.0])], {}).agreement is None
