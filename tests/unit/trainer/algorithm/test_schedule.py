"""The learning rate at each step."""

from __future__ import annotations

from typing import Literal

import pytest

from agent_rft.trainer.algorithm.schedule import learning_rate


def rates(total: int, schedule: Literal["constant", "linear", "cosine"]) -> list[float]:
    return [learning_rate(step, total=total, base=1.0, schedule=schedule) for step in range(total)]


def test_the_first_three_percent_ramp_up_from_above_zero() -> None:
    assert rates(100, "constant")[:5] == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0, 1.0])


def test_a_short_job_starts_at_full_rate() -> None:
    assert rates(20, "constant") == [1.0] * 20


def test_the_warm_up_can_be_longer_and_end_after_the_last_step() -> None:
    four = [learning_rate(step, total=6, base=1.0, schedule="linear", warm_up=4) for step in range(6)]
    assert four == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 0.5])
    assert learning_rate(5, total=6, base=1.0, schedule="cosine", warm_up=12) == pytest.approx(0.5)
    assert learning_rate(0, total=6, base=1.0, schedule="linear", warm_up=0) == 1.0


def test_linear_and_cosine_fall_from_the_full_rate_towards_zero() -> None:
    linear, cosine = rates(100, "linear")[3:], rates(100, "cosine")[3:]
    for falling in (linear, cosine):
        assert falling[0] == 1.0
        assert falling == sorted(falling, reverse=True)
        assert 0 < falling[-1] < 0.02
    middle = 97 // 2
    assert linear[middle] == pytest.approx(0.5, abs=0.01)
    assert cosine[middle] == pytest.approx(0.5, abs=0.01)
    assert cosine[10] > linear[10]


def test_steps_after_the_last_keep_the_final_rate() -> None:
    assert learning_rate(500, total=100, base=1.0, schedule="cosine") == 0.0
    assert learning_rate(500, total=100, base=1.0, schedule="constant") == 1.0
