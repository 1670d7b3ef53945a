"""95 % confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from agent_rft.metrics.confidence_intervals import (
    Interval,
    Values,
    bootstrap_interval,
    paired_interval,
    wilson_interval,
)

Random = np.random.Generator
TRIALS = 400
"""95 % of 400 have a standard deviation of 1.1 %, so 91 % is far from what chance does to a right interval."""


def test_wilson_has_the_published_bounds() -> None:
    found = wilson_interval(81, 263)  # Newcombe 1998, Statistics in Medicine 17, table I
    assert (round(found.low, 4), round(found.high, 4)) == (0.2553, 0.3662)
    assert [round(wilson_interval(0, 20).low, 4), round(wilson_interval(0, 20).high, 4)] == [0.0, 0.1611]
    assert wilson_interval(0, 5).high > 0.4 and wilson_interval(5, 5).low < 0.6
    with pytest.raises(ValueError, match="successes must be from 0 to 5, got 6"):
        wilson_interval(6, 5)


@pytest.mark.parametrize("values", [[0.0], [1.0], [0.4], [0.0] * 5, [1.0] * 40, [0.3] * 12])
def test_grades_that_do_not_differ_have_an_interval_with_a_width(values: list[float]) -> None:
    found = bootstrap_interval(values)
    assert 0.0 <= found.low <= found.mean <= found.high <= 1.0
    assert found.high - found.low >= wilson_interval(0, len(values)).high - 1e-9
    assert found.mean == pytest.approx(values[0])


def test_zeros_and_ones_have_wilsons_interval() -> None:
    assert bootstrap_interval([1.0, 0.0, 0.0, 1.0, 0.0]) == wilson_interval(2, 5)


def test_equal_files_differ_by_little_and_not_by_nothing() -> None:
    found = paired_interval([0.2, 0.9, 0.5] * 40, [0.2, 0.9, 0.5] * 40)
    assert found.mean == 0.0 and found.low == pytest.approx(-found.high) and 0.0 < found.high < 0.05


def test_the_same_values_have_the_same_interval() -> None:
    values = list(np.random.default_rng(1).random(40))
    assert bootstrap_interval(values) == bootstrap_interval(iter(values))


def test_what_was_not_measured_is_left_out_and_not_taken_as_zero() -> None:
    assert bootstrap_interval([1.0, math.nan, 1.0, math.inf]) == wilson_interval(2, 2)
    assert paired_interval([0.5, math.nan, 0.5], [1.0, 1.0, math.nan]).n == 1
    assert bootstrap_interval([]).n == 0 and str(bootstrap_interval([math.nan])) == "–"
    with pytest.raises(ValueError, match="zip"):
        paired_interval([1.0], [])


def test_values_without_bounds_have_no_interval_where_nothing_tells_its_width() -> None:
    for values in ([3.2], [3.2, 3.2]):
        found = bootstrap_interval(values, None)
        assert found.mean == 3.2 and math.isnan(found.low) and not found.low > 0 and "[?, ?]" in str(found)
    seconds = bootstrap_interval([3.1, 3.2, 3.3, 9.0], None)
    assert seconds.low < seconds.mean < seconds.high


def test_values_beyond_the_bounds_widen_them() -> None:
    found = bootstrap_interval([1.4, 1.4])
    assert found.mean == found.high == 1.4 and found.low < 1.0


def test_many_rows_are_no_array_of_all_draws() -> None:
    found = bootstrap_interval(np.random.default_rng(2).random(30_000))
    assert found.high - found.low == pytest.approx(2 * 1.96 * math.sqrt(1 / 12 / 30_000), rel=0.1)


def _half_right(random: Random, n: int) -> Values:
    return random.choice([0.0, 0.5, 1.0], p=[0.6, 0.1, 0.3], size=n)


@pytest.mark.parametrize("n", [3, 8, 30, 100])
@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda random, n: random.beta(2.0, 5.0, n), 2 / 7),
        (_half_right, 0.35),
        (lambda random, n: (random.random(n) < 0.1).astype(float), 0.1),
    ],
    ids=["continuous", "three values", "one in ten"],
)
def test_intervals_contain_the_true_mean_as_often_as_they_say(
    draw: Callable[[Random, int], Values], mean: float, n: int
) -> None:
    random = np.random.default_rng(n)
    found = [bootstrap_interval(draw(random, n)) for _ in range(TRIALS)]
    assert sum(interval.low <= mean <= interval.high for interval in found) >= 0.91 * TRIALS


def test_paired_intervals_contain_the_true_gain_and_are_narrower_than_unpaired_ones() -> None:
    random, hits = np.random.default_rng(5), 0
    for _ in range(TRIALS):
        before = random.random(60) * 0.6
        after = before + random.random(60) * 0.2
        found = paired_interval(before, after)
        hits += found.low <= 0.1 <= found.high
    assert hits >= 0.91 * TRIALS
    assert found.high - found.low < bootstrap_interval(after).high - bootstrap_interval(after).low


def test_few_values_are_marked() -> None:
    assert str(Interval(0.4, 0.12, 0.77, 5)) == "0.40 [0.12, 0.77] (n = 5)"
    assert str(Interval(0.42, 0.31, 0.53, 80)) == "0.42 [0.31, 0.53]"
    assert Interval(0.1, 0.0, 0.2, 30).format("{:+.3f}") == "+0.100 [+0.000, +0.200]"
    assert str(wilson_interval(0, 5)) == "0.00 [0.00, 0.43] (n = 5)"
