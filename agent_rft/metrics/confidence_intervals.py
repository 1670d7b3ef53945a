"""95 % confidence intervals of a mean.

The same values always give the same interval, and no interval has zero width. An interval estimates where the mean of
many more rows would lie. Rows are assumed to be independent: pass one value per row (the mean of its samples), not one
value per rollout. Values that are not finite are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_VALUES = 30
"""Minimum number of values for a reliable interval. With fewer values, their number is shown next to the interval."""
GRADES = (0.0, 1.0)
"""Lower and upper bound of a grade."""

Values = NDArray[np.float64]

_Z = 1.959964
_TAILS = (0.025, 0.975)
_RESAMPLES = 2000
_BLOCK = 2**20
"""Number of values that are resampled at a time, which bounds the memory for any number of rows."""
_SEED = 20


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean of `n` values, and the bounds of its 95 % confidence interval. Unknown numbers are NaN."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def has_few_values(self) -> bool:
        """Whether there are fewer than MIN_VALUES values. If so, the number of values is shown with the interval."""
        return self.n < MIN_VALUES

    def format_bounds(self, form: str = "{:.2f}") -> str:
        """Return the bounds as text: `[0.31, 0.53]`."""
        known = math.isfinite(self.low) and math.isfinite(self.high)
        return f"[{form.format(self.low)}, {form.format(self.high)}]" if known else "[?, ?]"

    def format(self, form: str = "{:.2f}") -> str:
        """Return the mean and the bounds as text: `0.42 [0.31, 0.53]`.

        With fewer than MIN_VALUES values, the text ends with their number: `0.40 [0.12, 0.77] (n = 5)`. Without values,
        the text is a dash.
        """
        if math.isnan(self.mean):
            return "–"
        return f"{form.format(self.mean)} {self.format_bounds(form)}" + (
            f" (n = {self.n})" if self.has_few_values else ""
        )

    def __str__(self) -> str:
        return self.format()


def wilson_interval(successes: int, n: int) -> Interval:
    """Return the Wilson score interval of the share `successes / n`.

    For 0 successes of 5, the share is 0.00 and its interval is 0.00 to 0.43.

    Source: Wilson 1927, JASA 22, "Probable inference, the law of succession, and statistical inference". Brown, Cai and
    DasGupta 2001, Statistical Science 16(2), recommend the interval for small n.

    Raises:
        ValueError: `successes` is below 0 or above `n`.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be from 0 to {n}, got {successes}")
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    share = successes / n
    center = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    return Interval(share, min(share, max(0.0, center - half)), max(share, min(1.0, center + half)), n)


def bootstrap_interval(values: Iterable[float], bounds: tuple[float, float] | None = GRADES) -> Interval:
    """Return a bootstrap interval of the mean of `values`, with a fixed seed.

    If all values are grades of 0 or 1, the result is the Wilson interval.

    `bounds` are the lowest and the highest possible value. None means that the values are unbounded, such as seconds.

    With `bounds`, the interval is widened if there are fewer than MIN_VALUES values, or if all values are equal.
    Without `bounds`, the interval is NaN if all values are equal.

    The percentile interval (Efron and Tibshirani 1993, chapter 13) is stretched for small n. See Hesterberg 2015, "What
    teachers should know about the bootstrap", arXiv:1411.5279, and Abramowitz and Stegun 26.7.5.
    """
    found = np.fromiter(values, np.float64)
    found = found[np.isfinite(found)]
    n = len(found)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    if bounds == GRADES and bool(np.isin(found, GRADES).all()):
        return wilson_interval(int(found.sum()), n)
    mean = float(found.mean())
    low = high = math.nan
    differ = float(np.ptp(found)) > 0.0
    if differ:
        stretch = math.sqrt(n / (n - 1)) * (1 + (_Z**2 + 1) / (4 * (n - 1)))
        low, high = (mean + stretch * (float(q) - mean) for q in np.quantile(_resample_means(found), _TAILS))
    if bounds is None:
        return Interval(mean, low, high, n)
    lowest, highest = min(bounds[0], float(found.min())), max(bounds[1], float(found.max()))
    if n < MIN_VALUES or not differ:
        unseen = wilson_interval(0, n).high
        low = float(np.fmin(low, mean - unseen * (mean - lowest)))
        high = float(np.fmax(high, mean + unseen * (highest - mean)))
    return Interval(mean, max(lowest, low), min(highest, high), n)


def paired_interval(
    before: Iterable[float], after: Iterable[float], bounds: tuple[float, float] | None = GRADES
) -> Interval:
    """Return the interval of the mean of the differences `after - before`, one difference per row.

    Differences between easy and hard rows therefore do not widen the interval. `before` and `after` contain the same
    rows in the same order. `bounds` are the lowest and the highest possible value of a row. A row is ignored if one of
    its values is not finite.

    Raises:
        ValueError: `before` and `after` differ in length.
    """
    differences = [new - old for old, new in zip(before, after, strict=True)]
    width = None if bounds is None else bounds[1] - bounds[0]
    return bootstrap_interval(differences, None if width is None else (-width, width))


def _resample_means(values: Values) -> Values:
    """Return the means of _RESAMPLES random samples of `values` with replacement, as an array of length _RESAMPLES."""
    random, n = np.random.default_rng(_SEED), len(values)
    rows = max(1, _BLOCK // n)
    sizes = [min(rows, _RESAMPLES - start) for start in range(0, _RESAMPLES, rows)]
    return np.concatenate([values[random.integers(n, size=(size, n))].mean(axis=1) for size in sizes])
