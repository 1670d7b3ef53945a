"""Coordinates of the SVG charts of a comparison, in pixels, so that the page needs no script.

A side is one of the compared evaluations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from agent_rft.cluster.views.comparison.comparison_stats import (
    CALL_CHANGE_LABELS,
    REWARD_CHANGE_LABELS,
    ComparisonRow,
    EvaluationComparison,
)
from agent_rft.cluster.views.comparison.loaded_evaluation import LoadedEvaluation
from agent_rft.metrics.confidence_intervals import Interval

WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 14, 38
LABEL = 34
"""Height in pixels of the space for the quadrant names, above and below the dots."""
MAX_SEPARATE = 24
"""Minimum number of turns or calls in the last bar. Each smaller number has a separate bar."""
BAR_WIDTH = 150


@dataclass(frozen=True, slots=True)
class Tick:
    position: float
    text: str


@dataclass(frozen=True, slots=True)
class Dot:
    x: float
    y: float
    radius: float
    title: str
    kind: str


@dataclass(frozen=True, slots=True)
class CornerLabel:
    """Text in a corner of a scatter plot: name of the quadrant, and number of rows in it."""

    x: float
    y: float
    anchor: str
    text: str


@dataclass(frozen=True, slots=True)
class Scatter:
    """Scatter plot: change in reward (y) against change in tool calls (x). Rows with equal changes share a dot."""

    x_zero: float
    y_zero: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    dots: tuple[Dot, ...]
    corners: tuple[CornerLabel, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    side: int
    title: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """Histogram of turns or calls per rollout, with bars for each compared evaluation.

    `unit` is "turns" or "calls". `p95` contains the 95th percentile of each evaluation.
    """

    unit: str
    p95: tuple[float, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """Validation rewards of one run, as points of an SVG polyline and as dots."""

    side: int
    points: str
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class ValidationChart:
    """Chart of validation rewards by step, with one curve per run."""

    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True)
class IntervalBar:
    """Bar that shows a change and its confidence interval. `zero`, the middle of the bar, represents no change."""

    zero: float
    low: float
    high: float
    mean: float


def make_scatter(rows: Sequence[ComparisonRow], side: int, quadrants: Counter[tuple[int, int]]) -> Scatter:
    """Create the scatter plot of the rows' changes from the first evaluation to the evaluation with index `side`.

    `quadrants` has the number of rows in each quadrant, by the signs of the changes: (reward, tool calls).
    """
    found = Counter((row.change("tool_calls", side), row.change("reward", side)) for row in rows)
    x_max = _round_up(max(1.0, *(abs(x) for x, _ in found)))
    y_max = _round_up(max(0.1, *(abs(y) for _, y in found)))
    x_zero, y_zero = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    x_unit, y_unit = (WIDTH - RIGHT - x_zero - 18) / x_max, (y_zero - TOP - LABEL) / y_max
    dots = [
        Dot(
            x_zero + x * x_unit,
            y_zero - y * y_unit,
            min(16.0, 3.5 + 1.8 * math.sqrt(count - 1)),
            f"{count} row{'s' * (count > 1)}: reward {y:+.3f}, {x:+.2f} calls",
            "better" if y > 0 else "worse" if y < 0 else "same",
        )
        for (x, y), count in found.most_common()
    ]
    corners = []
    for reward, calls in ((1, -1), (1, 1), (-1, -1), (-1, 1)):
        count = quadrants[reward, calls]
        corners.append(
            CornerLabel(
                LEFT + 6 if calls < 0 else WIDTH - RIGHT - 6,
                TOP + 12 if reward > 0 else HEIGHT - BOTTOM - 6,
                "start" if calls < 0 else "end",
                f"{REWARD_CHANGE_LABELS[reward]}, {CALL_CHANGE_LABELS[calls]}: {count}",
            )
        )
    fractions = (-1.0, -0.5, 0.0, 0.5, 1.0)
    return Scatter(
        x_zero,
        y_zero,
        tuple(Tick(x_zero + f * x_max * x_unit, f"{f * x_max:+g}" if f else "0") for f in fractions),
        tuple(Tick(y_zero - f * y_max * y_unit, f"{f * y_max:+g}" if f else "0") for f in fractions),
        tuple(dots),
        tuple(corners),
    )


def make_histogram(comparison: EvaluationComparison, metric: Literal["turns", "tool_calls"]) -> Histogram:
    """Create the histogram of turns or calls per rollout."""
    unit = "turn" if metric == "turns" else "call"
    found = [
        [int(rollout.measures[metric]) for row in comparison.rows for rollout in row.rollouts[side]]
        for side in range(len(comparison.sides))
    ]
    counts = [Counter(min(MAX_SEPARATE, value) for value in values) for values in found]
    first, last = min(min(count) for count in counts), max(max(count) for count in counts)
    highest = _round_up(max(max(count.values()) / count.total() for count in counts))
    slot = (WIDTH - LEFT - RIGHT) / (last - first + 1)
    width = min(36.0, 0.8 * slot / len(counts))
    bottom, height = HEIGHT - BOTTOM, (HEIGHT - BOTTOM - TOP) / highest
    bars = []
    for value in range(first, last + 1):
        middle = LEFT + (value - first + 0.5) * slot
        for side, count in enumerate(counts):
            share = count[value] / count.total()
            x = middle + (side - len(counts) / 2) * width
            takes = f"{_count_label(value)} {unit}{'s' * (value != 1)}"
            title = f"{comparison.sides[side].label}: {share:.0%} of the rollouts take {takes}"
            bars.append(Bar(x, bottom - share * height, width - 1, share * height, side, title))
    step = max(1, math.ceil((last - first + 1) / 12))
    x_ticks = [Tick(LEFT + (v - first + 0.5) * slot, _count_label(v)) for v in range(first, last + 1, step)]
    y_ticks = [Tick(bottom - f * highest * height, f"{f * highest:.0%}") for f in (0.0, 0.5, 1.0)]
    visible = tuple(bar for bar in bars if bar.height)
    return Histogram(
        f"{unit}s", tuple(float(np.percentile(values, 95)) for values in found), tuple(x_ticks), tuple(y_ticks), visible
    )


def make_curves(sides: Sequence[LoadedEvaluation]) -> ValidationChart | None:
    """Create the chart of validation curves; None if fewer than two runs were validated more than once."""
    runs = dict[str, int]()
    for number, side in enumerate(sides):
        if len(side.validations) > 1:
            runs.setdefault(side.run, number)
    if len(runs) < 2:
        return None
    points = [point for number in runs.values() for point in sides[number].validations]
    last = max(step for step, _ in points)
    low, high = min(0.0, *(reward for _, reward in points)), max(0.0, *(reward for _, reward in points))
    span = _round_up(max(high - low, 0.01))
    bottom, x_unit = HEIGHT - BOTTOM, (WIDTH - LEFT - RIGHT - 12) / max(1, last)

    def scale(reward: float) -> float:
        return bottom - (reward - low) / span * (bottom - TOP - 6)

    run_curves = list[Curve]()
    for number in runs.values():
        dots = tuple(
            Dot(LEFT + step * x_unit, scale(reward), 3, f"{sides[number].label}, step {step}: reward {reward:.3f}", "")
            for step, reward in sides[number].validations
        )
        run_curves.append(Curve(number, " ".join(f"{dot.x:.1f},{dot.y:.1f}" for dot in dots), dots))
    steps = sorted({round(share * last) for share in (0.0, 0.25, 0.5, 0.75, 1.0)})
    return ValidationChart(
        tuple(Tick(LEFT + step * x_unit, str(step)) for step in steps),
        tuple(Tick(scale(low + share * span), f"{low + share * span:.3g}") for share in (0.0, 0.5, 1.0)),
        tuple(run_curves),
    )


def make_interval_bar(interval: Interval) -> IntervalBar | None:
    """Create the bar for an interval in a table cell; None if the interval is infinite, NaN or exactly 0."""
    largest = max(abs(interval.low), abs(interval.high), 1e-12)
    if not math.isfinite(largest) or interval.low == interval.high == 0.0:
        return None
    middle = BAR_WIDTH / 2

    def scale(value: float) -> float:
        return middle + value / largest * (middle - 6)

    return IntervalBar(middle, scale(interval.low), scale(interval.high), scale(interval.mean))


def _count_label(value: int) -> str:
    return f"{value}+" if value == MAX_SEPARATE else str(value)


def _round_up(value: float) -> float:
    """Round up to 1, 2, 4, 5 or 10 times a power of ten, so that axes end at round numbers."""
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 4, 5, 10) if factor * power >= value * (1 - 1e-9))
