"""Advantages: scores of rollouts relative to the other rollouts of their group. One pure function per algorithm.

Shapes: rewards [n] -> advantages [n], where n >= 2 is the number of graded rollouts in one group. An advantage applies
to all sampled tokens of its rollout. For the rewards 1, 0, 0.5, 0.5:

    centered     0.5   -0.5   0  0      differences from the mean, 0.5
    grpo        1.22  -1.22  0  0      differences divided by the standard deviation, 0.408
    rloo        0.67  -0.67  0  0      differences from the mean of the other three rewards
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agent_rft.spec.job import Advantage

Rewards = NDArray[np.float64]
ZeroVarianceKind = Literal["all_right", "all_wrong", "equal"]

EQUAL_WITHIN = 1e-6
"""Numbers whose difference is smaller than this are treated as equal, because of rounding errors."""
MIN_DIFFERENCE = 1e-3
"""If rewards differ only by penalties, differences smaller than this count as zero.

This is also the smallest number that `grpo` divides by."""


def center_rewards(rewards: Rewards) -> Rewards:
    """Return A_i = r_i - mean(r).

    A_i is not divided by the standard deviation, because this would give more weight to tasks that are almost always or
    almost never solved. Source: Liu et al. 2025, "Understanding R1-Zero-Like Training" (Dr. GRPO), arXiv 2503.20783.
    """
    differences: Rewards = rewards - rewards.mean()
    return differences


def grpo(rewards: Rewards) -> Rewards:
    """Return A_i = (r_i - mean(r)) / max(std(r), MIN_DIFFERENCE), with the sample standard deviation (n - 1).

    Source: Shao et al. 2024, DeepSeekMath, arXiv 2402.03300, section 4.1.2. We added MIN_DIFFERENCE: without it,
    rewards that differ by 1e-6 would have the same advantages as rewards that differ by 1.
    """
    return center_rewards(rewards) / max(float(rewards.std(ddof=1)), MIN_DIFFERENCE)


def rloo(rewards: Rewards) -> Rewards:
    """Return A_i = r_i - mean of the other n - 1 rewards = n / (n - 1) x (r_i - mean(r)).

    Source: Ahmadian et al. 2024, "Back to Basics", arXiv 2402.14740, section 3.3.
    """
    return center_rewards(rewards) * (len(rewards) / (len(rewards) - 1))


_ALGORITHMS: dict[Advantage, Callable[[Rewards], Rewards]] = {"centered": center_rewards, "grpo": grpo, "rloo": rloo}


def compute_advantages(algorithm: Advantage, rewards: Rewards) -> Rewards:
    """Return the advantages [n] of one group's rewards [n].

    Raises:
        ValueError: There are fewer than two rewards, or one of them is not finite.
    """
    if len(rewards) < 2:
        raise ValueError(f"a group needs at least two graded rollouts, but this group has {len(rewards)}")
    if not np.isfinite(rewards).all():
        raise ValueError(f"a reward is not finite: {rewards.tolist()}")
    return _ALGORITHMS[algorithm](rewards)


def classify_group_variance(
    rewards: Rewards, grades: Sequence[float], pass_threshold: float
) -> ZeroVarianceKind | None:
    """Return the kind of a zero-variance group, or None if the group's rewards differ enough for training.

    If all grades are equal, the rewards differ only by penalties. They then differ enough if the largest difference is
    at least MIN_DIFFERENCE. In "all_right" groups every grade is at least `pass_threshold`. In "all_wrong" groups every
    grade is 0 or less. All other zero-variance groups are "equal".
    """
    if np.ptp(rewards) >= (EQUAL_WITHIN if np.ptp(grades) >= EQUAL_WITHIN else MIN_DIFFERENCE):
        return None
    if all(grade >= pass_threshold for grade in grades):
        return "all_right"
    return "all_wrong" if all(grade <= 0 for grade in grades) else "equal"
