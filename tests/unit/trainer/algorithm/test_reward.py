"""Penalties reduce the reward of a correct answer, but never to that of a wrong one, and do not affect wrong ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rft.spec.job import RewardSpec
from agent_rft.trainer.algorithm.reward import KEPT_SHARE, compute_reward
from agent_rft.types import Grade

SPEC = RewardSpec(
    tool_call_budget=2, tool_call_penalty=0.03, turn_penalty=0.05, token_penalty=1e-4, time_penalty_per_s=0.01
)


def test_calls_over_budget_turns_tokens_and_seconds_are_penalized() -> None:
    assert compute_reward(SPEC, Grade(1.0), num_calls=5, num_turns=4, num_sampled=100, busy_s=2.0) == pytest.approx(
        1 - 0.09 - 0.15 - 0.01 - 0.02
    )


def test_calls_in_one_turn_are_worth_more_than_the_same_calls_one_by_one() -> None:
    parallel, sequential = (
        compute_reward(SPEC, Grade(1.0), num_calls=3, num_turns=turns, num_sampled=90, busy_s=0.0) for turns in (2, 4)
    )
    assert parallel - sequential == pytest.approx(2 * SPEC.turn_penalty)


def test_calls_within_the_budget_and_the_first_turn_are_free() -> None:
    assert compute_reward(SPEC, Grade(1.0), num_calls=2, num_turns=1, num_sampled=0, busy_s=0.0) == 1.0
    assert compute_reward(SPEC, Grade(1.0), num_calls=0, num_turns=0, num_sampled=0, busy_s=0.0) == 1.0


@pytest.mark.parametrize("grade", [0.0, -1.0])
def test_a_grade_of_zero_or_less_takes_no_penalty(grade: float) -> None:
    assert compute_reward(SPEC, Grade(grade), num_calls=50, num_turns=50, num_sampled=10_000, busy_s=100.0) == grade


def test_penalties_leave_a_share_of_a_positive_grade() -> None:
    assert compute_reward(SPEC, Grade(0.5), num_calls=500, num_turns=9, num_sampled=0, busy_s=0.0) == pytest.approx(
        KEPT_SHARE * 0.5
    )


@pytest.mark.parametrize("value", [-1.0, 0.0, 0.3])
def test_the_value_of_a_guard_is_the_reward_unchanged(value: float) -> None:
    assert (
        compute_reward(
            SPEC, Grade(value, guard="cheating"), num_calls=50, num_turns=50, num_sampled=10**6, busy_s=100.0
        )
        == value
    )


costs = st.tuples(st.integers(0, 100), st.integers(0, 100), st.integers(0, 10**6), st.floats(0, 10**4))
grades = st.floats(0.001, 1.0)


@settings(deadline=None, max_examples=50)
@given(grades, costs, st.floats(-1.0, 0.0), costs)
def test_giving_up_never_pays(
    right: float, spent: tuple[int, int, int, float], wrong: float, idle: tuple[int, int, int, float]
) -> None:
    assert compute_reward(SPEC, Grade(right), *spent) > compute_reward(SPEC, Grade(wrong), *idle)


@settings(deadline=None, max_examples=50)
@given(grades, grades, costs)
def test_at_equal_cost_a_better_grade_has_a_better_reward(
    a: float, b: float, spent: tuple[int, int, int, float]
) -> None:
    low, high = sorted((a, b))
    assert compute_reward(SPEC, Grade(low), *spent) <= compute_reward(SPEC, Grade(high), *spent) <= high
