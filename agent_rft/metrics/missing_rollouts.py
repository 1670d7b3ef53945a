"""Statistics of evaluations in which some rollouts have no grade.

Rollouts are not discarded at random: wrong answers are often long, and long rollouts time out. The mean of the graded
rollouts is therefore biased. `mean_bounds` returns a lower and an upper bound of the true mean. The bounds hold for all
possible values of the missing grades.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

MAX_MISSING_SHARE = 0.05
"""Maximum share of missing rollouts in a validation that is compared with other validations."""
MAX_ROUNDING_ERROR = 1e-9
"""Maximum difference between two means that counts as 0, because it may be a rounding error."""


def mean_bounds(values: Iterable[float], num_missing: int, limits: tuple[float, float]) -> tuple[float, float]:
    """Return the lowest and the highest possible mean of `values` and `num_missing` missing values.

    `limits` are the lowest and the highest possible value. They are widened if one of `values` lies outside.
    """
    found = [float(value) for value in values]
    lowest, highest = min(limits[0], *found, math.inf), max(limits[1], *found, -math.inf)
    total, count = math.fsum(found), len(found) + num_missing
    return (total + num_missing * lowest) / count, (total + num_missing * highest) / count


def format_missing(num_missing: int, num_rollouts: int, bounds: tuple[float, float] | None = None) -> str:
    """Return a sentence about missing rollouts, without a period; empty if no rollout is missing.

    `bounds` are the bounds of the mean grade, if they are known.
    """
    if not num_missing:
        return ""
    note = f"{num_missing} of {num_rollouts} rollouts {'has' if num_missing == 1 else 'have'} no grade"
    if bounds is None:
        return note
    low, high = bounds
    wrong, right = "if all missing rollouts count as wrong", "if all count as right"
    return f"{note}: the mean grade is {low:.3f} {wrong}, and {high:.3f} {right}"


@dataclass(frozen=True, slots=True)
class ValidationScore:
    """Rewards of one validation, for comparisons with other validations.

    Attributes:
        row_rewards: Mean reward of each row with at least one graded rollout, by row id.
        num_missing: Number of rollouts without a grade.
        scaled_reward: Reward that is comparable with the rewards of earlier validations; see `LoopState.valid_rewards`.
    """

    row_rewards: dict[str, float] = field(default_factory=dict)
    num_rows: int = 0
    samples: int = 1
    num_missing: int = 0
    scaled_reward: float = 0.0

    @property
    def num_rollouts(self) -> int:
        """Number of rollouts of the validation, including missing rollouts."""
        return self.num_rows * self.samples

    @property
    def missing_note(self) -> str:
        return format_missing(self.num_missing, self.num_rollouts)

    @property
    def is_sufficient(self) -> bool:
        """Whether enough rollouts were graded to compare this validation with other validations.

        The maximum number of missing rollouts is 5 % of all rollouts or the number of rollouts per row, whichever is
        larger.
        """
        return self.num_missing <= max(self.samples, MAX_MISSING_SHARE * self.num_rollouts)

    def gain_over(self, other: ValidationScore) -> float:
        """Return the mean change in reward from `other`, over the rows that were graded in both validations.

        If there are no such rows, return the difference between the mean rewards of the two validations. Both
        validations must have graded rows.
        """
        ours, theirs = self.row_rewards, other.row_rewards
        both = ours.keys() & theirs.keys()
        gain = fmean(ours[row] for row in both or ours) - fmean(theirs[row] for row in both or theirs)
        return 0.0 if abs(gain) <= MAX_ROUNDING_ERROR else gain


def last_gain(rewards: Sequence[float], min_gain: float) -> int:
    """Return the index of the last reward that exceeds the best reward before it by more than `min_gain`.

    The first reward is always a gain. Without rewards, return -1.
    """
    best, index = -math.inf, -1
    for number, reward in enumerate(rewards):
        if reward > best + min_gain:
            best, index = reward, number
    return index
