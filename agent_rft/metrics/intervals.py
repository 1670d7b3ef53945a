"""95 % confidence intervals of a mean: never of width zero, whatever was measured, and equal for equal values.

They answer how far the mean of many more rows could lie from that of these. Rows are taken as independent: give one
value a row (the mean of its samples), not one a rollout. Values that are not finite are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEW = 30
"""Below this many values an interval is printed with their number: it is wide, and one row more or less moves it."""
GRADES = (0.0, 1.0)
"""The bounds of a grade."""

Values = NDArray[np.float64]

_Z = 1.959964
_TAILS = (0.025, 0.975)
_RESAMPLES = 2000
_BLOCK = 2**20
"""Values drawn at once, so that a hundred thousand rows need no more memory than a thousand."""
_SEED = 20


@dataclass(frozen=True, slots=True)
class Interval:
    """The mean of `n` values and its 95 % confidence interval; NaN where nothing is known."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def few(self) -> bool:
        """Whether the values are so few that the number has to be shown."""
        return self.n < FEW

    def bounds(self, form: str = "{:.2f}") -> str:
        """`[0.31, 0.53]`."""
        known = math.isfinite(self.low) and math.isfinite(self.high)
        return f"[{form.format(self.low)}, {form.format(self.high)}]" if known else "[?, ?]"

    def text(self, form: str = "{:.2f}") -> str:
        """`0.42 [0.31, 0.53]`, for fewer than FEW values `0.40 [0.12, 0.77] (n = 5)`, for none a dash."""
        if math.isnan(self.mean):
            return "–"
        return f"{form.format(self.mean)} {self.bounds(form)}" + (f" (n = {self.n})" if self.few else "")

    def __str__(self) -> str:
        return self.text()


def wilson(successes: int, n: int) -> Interval:
    """The score interval of a share: 0 of 5 is 0.00 [0.00, 0.43].

    Wilson 1927, JASA 22, "Probable inference, the law of succession, and statistical inference"; recommended for small
    n by Brown, Cai and DasGupta 2001, Statistical Science 16(2).

    Raises:
        ValueError: There are fewer than 0 or more than n successes.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    share = successes / n
    centre = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    return Interval(share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)), n)


def bootstrap_mean(values: Iterable[float], bounds: tuple[float, float] | None = GRADES) -> Interval:
    """The interval of the mean of `values`, by resampling them with a fixed seed; Wilson's where all are 0 or 1.

    `bounds` are the least and greatest possible value (those seen widen them), None if there are none, as of seconds.
    They tell what few or equal values do not: a share of up to `wilson(0, n).high` of all rows may be unlike the n
    seen, and lie at a bound. With fewer than FEW values, or equal ones, the interval is not narrower than this allows;
    for n equal grades of 0 or 1 it is Wilson's. Without bounds, n = 1 or equal values say nothing of the width, and it
    is NaN.

    The percentile interval of Efron and Tibshirani 1993, chapter 13, is stretched for small n by sqrt(n / (n - 1)) and
    by the ratio of Student's quantile to the normal one: Hesterberg 2015, "What teachers should know about the
    bootstrap", arXiv:1411.5279; the ratio is the first term of Abramowitz and Stegun 26.7.5.
    """
    found = np.fromiter(values, np.float64)
    found = found[np.isfinite(found)]
    n = len(found)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    if bounds == GRADES and bool(np.isin(found, GRADES).all()):
        return wilson(int(found.sum()), n)
    mean = float(found.mean())
    low = high = math.nan
    differ = float(np.ptp(found)) > 0.0
    if differ:
        stretch = math.sqrt(n / (n - 1)) * (1 + (_Z**2 + 1) / (4 * (n - 1)))
        low, high = (mean + stretch * (float(q) - mean) for q in np.quantile(_resampled(found), _TAILS))
    if bounds is None:
        return Interval(mean, low, high, n)
    least, greatest = min(bounds[0], float(found.min())), max(bounds[1], float(found.max()))
    if n < FEW or not differ:
        unseen = wilson(0, n).high
        low = float(np.fmin(low, mean - unseen * (mean - least)))
        high = float(np.fmax(high, mean + unseen * (greatest - mean)))
    return Interval(mean, max(least, low), min(greatest, high), n)


def paired_bootstrap(
    before: Iterable[float], after: Iterable[float], bounds: tuple[float, float] | None = GRADES
) -> Interval:
    """The interval of the mean of `after - before`, each row with itself: differences between rows do not widen it.

    The two have the same rows in the same order; `bounds` are those of the values. Rows with a value that is not finite
    in one of them are left out.

    Raises:
        ValueError: The two differ in length.
    """
    differences = [new - old for old, new in zip(before, after, strict=True)]
    width = None if bounds is None else bounds[1] - bounds[0]
    return bootstrap_mean(differences, None if width is None else (-width, width))


def _resampled(values: Values) -> Values:
    """The means of _RESAMPLES draws with replacement: [_RESAMPLES]."""
    random, n = np.random.default_rng(_SEED), len(values)
    rows = max(1, _BLOCK // n)
    sizes = [min(rows, _RESAMPLES - start) for start in range(0, _RESAMPLES, rows)]
    return np.concatenate([values[random.integers(n, size=(size, n))].mean(axis=1) for size in sizes])
