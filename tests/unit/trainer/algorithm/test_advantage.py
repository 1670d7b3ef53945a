"""Advantages against numbers worked out by hand, and groups without a training signal."""

from __future__ import annotations

import numpy as np
import pytest

from agent_rft.spec.job import Advantage
from agent_rft.trainer.algorithm.advantage import classify_group_variance, compute_advantages

REWARDS = np.array([1.0, 0.0, 0.5, 0.5])
ALGORITHMS: list[Advantage] = ["centered", "grpo", "rloo"]


def test_centred_is_the_difference_from_the_mean() -> None:
    assert compute_advantages("centered", REWARDS).tolist() == [0.5, -0.5, 0.0, 0.0]


def test_grpo_divides_by_the_sample_standard_deviation() -> None:
    deviation = (0.5 / 3) ** 0.5  # squares sum to 0.5 over n - 1 = 3
    expected = np.array([0.5, -0.5, 0.0, 0.0]) / deviation
    assert compute_advantages("grpo", REWARDS) == pytest.approx(expected)


def test_grpo_does_not_blow_up_tiny_differences() -> None:
    assert compute_advantages("grpo", np.array([1.0, 1.0 - 2e-6])) == pytest.approx([1e-3, -1e-3])


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    others = [np.delete(REWARDS, i).mean() for i in range(4)]
    assert compute_advantages("rloo", REWARDS) == pytest.approx(REWARDS - others)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_advantages_of_a_group_sum_to_zero_and_keep_its_order(algorithm: Advantage) -> None:
    rewards = np.random.default_rng(0).normal(size=9)
    values = compute_advantages(algorithm, rewards)
    assert values.sum() == pytest.approx(0.0, abs=1e-12)
    assert (np.argsort(values) == np.argsort(rewards)).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_two_rollouts_are_enough_and_one_is_rejected(algorithm: Advantage) -> None:
    better, worse = compute_advantages(algorithm, np.array([0.7, 0.2]))
    assert better == pytest.approx(-worse)
    assert better > 0
    with pytest.raises(ValueError, match="two graded rollouts"):
        compute_advantages(algorithm, np.array([1.0]))


def test_a_reward_that_is_not_finite_is_rejected() -> None:
    with pytest.raises(ValueError, match="not finite"):
        compute_advantages("centered", np.array([1.0, float("nan")]))


@pytest.mark.parametrize(
    ("rewards", "grades", "kind"),
    [
        ([1.0, 1.0], [1.0, 1.0], "all_right"),
        ([0.9, 0.9 + 1e-9], [1.0, 1.0], "all_right"),
        ([0.0, 0.0], [0.0, 0.0], "all_wrong"),
        ([-1.0, -1.0], [-1.0, -1.0], "all_wrong"),
        ([0.5, 0.5], [0.5, 0.5], "equal"),
        ([1.0, 0.97], [1.0, 1.0], None),
        ([1.0, 0.9995], [1.0, 1.0], "all_right"),
        ([0.5, 0.499], [0.5, 0.5], None),
        ([0.5, 0.4995], [0.5, 0.4995], None),
        ([0.0, 0.0, 1e-3], [0.0, 0.0, 1e-3], None),
    ],
)
def test_a_group_without_signal_has_a_reason(rewards: list[float], grades: list[float], kind: str | None) -> None:
    assert classify_group_variance(np.array(rewards), grades, pass_threshold=1.0) == kind


def test_all_right_depends_on_the_pass_threshold() -> None:
    assert classify_group_variance(np.array([0.8, 0.8]), [0.8, 0.8], pass_threshold=0.75) == "all_right"
