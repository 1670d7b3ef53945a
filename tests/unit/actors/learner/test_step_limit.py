"""The limit of a learner's step: generous for its tokens, and never so short that a usual step is taken for a hang."""

from __future__ import annotations

import pytest

from agent_rft.actors.learner.rank_calls import FIRST_STEP_LIMIT_FACTOR, STEP_LIMIT_FACTOR, StepLimit


def test_a_usual_step_has_the_same_limit_as_any_call() -> None:
    limit = StepLimit(1800.0, assumed_token_s=1e-6)
    assert limit.limit_s(1_000_000) == 1800.0
    limit.record(1_000_000, 60.0)
    assert limit.limit_s(2_000_000) == 1800.0


def test_the_first_step_may_take_many_times_what_the_plan_assumes() -> None:
    assert StepLimit(1800.0, assumed_token_s=0.001).limit_s(2_000_000) == FIRST_STEP_LIMIT_FACTOR * 2000.0
    assert StepLimit(1800.0, assumed_token_s=0.0).limit_s(2_000_000) == 1800.0  # nothing is known


def test_a_long_step_is_limited_by_its_tokens_and_the_measured_rate() -> None:
    limit = StepLimit(1800.0, assumed_token_s=0.001)
    limit.record(1_000_000, 2400.0)
    assert limit.limit_s(1_000_000) == pytest.approx(STEP_LIMIT_FACTOR * 2400.0)
    assert limit.limit_s(3_000_000) == pytest.approx(STEP_LIMIT_FACTOR * 7200.0)


def test_a_short_step_hardly_changes_the_rate() -> None:
    """Its time is mostly overhead."""
    limit = StepLimit(1800.0, assumed_token_s=0.001)
    limit.record(100, 10.0)
    limit.record(1_000_000, 2390.0)
    assert limit.limit_s(1_000_000) == pytest.approx(STEP_LIMIT_FACTOR * 2400.0, rel=1e-3)
