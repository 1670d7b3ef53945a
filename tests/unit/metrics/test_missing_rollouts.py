"""Statistics of evaluations that lack rollouts: bounds, sufficient validations, and gains over common rows."""

from __future__ import annotations

import pytest

from agent_rft.metrics.missing_rollouts import ValidationScore, format_missing, last_gain, mean_bounds


@pytest.mark.parametrize(
    ("values", "num_missing", "limits", "bounds"),
    [
        ([0.5, 1.0], 0, (0.0, 1.0), (0.75, 0.75)),
        ([0.5, 1.0], 2, (0.0, 1.0), (0.375, 0.875)),
        ([], 3, (0.0, 1.0), (0.0, 1.0)),
        ([4.0], 1, (0.0, 5.0), (2.0, 4.5)),
        ([-1.0, 2.0], 2, (0.0, 1.0), (-0.25, 1.25)),
    ],
)
def test_missing_values_are_the_lowest_or_the_highest_possible(
    values: list[float], num_missing: int, limits: tuple[float, float], bounds: tuple[float, float]
) -> None:
    assert mean_bounds(values, num_missing, limits) == bounds


@pytest.mark.parametrize(
    ("num_rows", "samples", "num_missing", "is_sufficient"),
    [
        (100, 1, 0, True),
        (100, 1, 5, True),
        (100, 1, 6, False),
        (10, 1, 1, True),  # 10 %, but one row
        (10, 1, 2, False),
        (10, 4, 4, True),  # as many as one row has
        (10, 4, 5, False),
        (40, 4, 8, True),
        (40, 4, 9, False),
        (1, 1, 1, True),  # nothing was graded, so the reward is NaN and is not counted anyway
    ],
)
def test_a_validation_may_lack_one_row_or_five_percent(
    num_rows: int, samples: int, num_missing: int, is_sufficient: bool
) -> None:
    score = ValidationScore(num_rows=num_rows, samples=samples, num_missing=num_missing)
    assert score.is_sufficient is is_sufficient


def test_a_gain_is_the_mean_over_the_rows_that_were_graded_in_both() -> None:
    before, after = ValidationScore({"a": 0.0, "b": 0.5, "c": 1.0}), ValidationScore({"b": 0.75, "c": 1.0, "d": 0.0})
    assert after.gain_over(before) == 0.125 and before.gain_over(after) == -0.125
    assert ValidationScore({"d": 1.0}).gain_over(before) == 0.5, "without common rows, the means of all rows"
    thirds = ValidationScore({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    assert thirds.gain_over(ValidationScore({"a": 1.0, "b": 0.0, "c": 1e-12})) == 0.0, "a rounding error is not a gain"


@pytest.mark.parametrize(
    ("rewards", "min_gain", "index"),
    [([], 0.0, -1), ([-1.0], 0.5, 0), ([0.5, 0.5], 0.0, 0), ([0.5, 0.55, 0.65], 0.1, 2), ([0.5, 0.7, 0.6], 0.1, 1)],
)
def test_the_last_gain_exceeds_the_best_by_more_than_the_minimum(
    rewards: list[float], min_gain: float, index: int
) -> None:
    assert last_gain(rewards, min_gain) == index


def test_the_sentence_names_the_bounds_if_they_are_known() -> None:
    assert format_missing(0, 10) == ""
    assert format_missing(1, 10) == "1 of 10 rollouts has no grade"
    bounds = "the mean grade is 0.400 if all missing rollouts count as wrong, and 0.650 if all count as right"
    assert format_missing(25, 100, (0.4, 0.65)) == f"25 of 100 rollouts have no grade: {bounds}"
