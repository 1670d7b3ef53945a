"""Training signal in the readiness samples: reward statistics of rows, and the share of groups whose rewards differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean, pstdev

from agent_rft.metrics.confidence_intervals import Interval, bootstrap_interval
from agent_rft.metrics.pass_at_k import pass_at_k
from agent_rft.trainer.algorithm.advantage import (
    EQUAL_WITHIN,
    MIN_DIFFERENCE,
    ZeroVarianceKind,
    classify_group_variance,
)
from agent_rft.types import Group, Rollout

SIZES = (4, 8, 16, 32)
"""Group sizes to compare. They correspond to `compute_multiplier` 0.5, 1, 2 and 4."""
SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class RowSignal:
    """Statistics of one row with at least one trainable rollout.

    `mean`, `deviation`, `best` and `worst` describe the rewards of the trainable rollouts. The mean grade `grade` and
    the counts `passed` and `graded` include all graded rollouts. `no_signal` is None if the rewards differ enough for
    training. Otherwise it is `all_right`, `all_wrong`, or `equal` for all other cases.
    """

    row_id: str
    line: int
    question: str
    mean: float
    deviation: float
    best: float
    worst: float
    grade: float
    passed: int
    graded: int
    discarded: int
    no_signal: ZeroVarianceKind | None


@dataclass(frozen=True, slots=True)
class RowShares:
    """Shares of the graded rows, by the rewards of their rollouts.

    `signal` is the share of rows whose rollouts have different rewards. In the other rows, all rollouts pass
    (`all_right`), all fail (`all_wrong`), or neither (`equal`).
    """

    all_right: float
    all_wrong: float
    equal: float
    signal: float


@dataclass(frozen=True, slots=True)
class PassAtK:
    k: int
    share: Interval


@dataclass(frozen=True, slots=True)
class GroupSignal:
    """Expected share of groups whose rewards differ, as a lower and an upper bound. Each group has `size` rollouts."""

    size: int
    low: float
    high: float


def measure_rows(groups: Iterable[Group], pass_threshold: float) -> list[RowSignal]:
    """Return the statistics of each row that has a trainable rollout, in ascending order of mean reward."""
    rows = [_measure_row(group, pass_threshold) for group in groups if group.trainable]
    return sorted(rows, key=lambda row: (row.mean, row.best, row.line))


def _measure_row(group: Group, pass_threshold: float) -> RowSignal:
    task, rewards = group.request.task, group.rewards.tolist()
    grades = [rollout.grade.value for rollout in group.rollouts]
    return RowSignal(
        row_id=task.row_id,
        line=task.line,
        question=str(task.messages[-1].get("content") or "")[:SHOWN_CHARS],
        mean=fmean(rewards),
        deviation=pstdev(rewards),
        best=max(rewards),
        worst=min(rewards),
        grade=fmean(grades),
        passed=sum(grade >= pass_threshold for grade in grades),
        graded=len(grades),
        discarded=len(group.discarded),
        no_signal=classify_group_variance(group.rewards, [r.grade.value for r in group.trainable], pass_threshold),
    )


def count_row_shares(rows: Sequence[RowSignal]) -> RowShares:
    counts = Counter(row.no_signal for row in rows)
    total = max(1, len(rows))
    return RowShares(*(counts[kind] / total for kind in ("all_right", "all_wrong", "equal", None)))


def estimate_pass_at(rows: Sequence[RowSignal], samples: int) -> tuple[PassAtK, ...]:
    """Return pass@k for k = 1, 2, 4, ... and `samples`, with confidence intervals over rows.

    The estimator `agent_rft.metrics.pass_at_k` is unbiased for each row with at least k rollouts (Chen et al. 2021,
    arXiv:2107.03374, equation 1). Rows with fewer rollouts are left out.
    """
    found = []
    for k in sorted({*(1 << i for i in range(samples.bit_length())), samples}):
        values = [pass_at_k(row.graded, row.passed, k) for row in rows if row.graded >= k]
        if values:
            found.append(PassAtK(k, bootstrap_interval(values)))
    return tuple(found)


def estimate_group_signal(groups: Sequence[Group], sizes: Iterable[int] = SIZES) -> tuple[GroupSignal, ...]:
    """Return the expected share of groups whose rewards differ, for each group size.

    Each result has a lower and an upper bound of the share. The bounds are equal if every row has at least as many
    rollouts as the group size. For larger group sizes, the share is extrapolated.
    """
    outcomes = [_count_outcomes(group.trainable) for group in groups if len(group.trainable) >= 2]
    if not outcomes:
        return ()
    bounds = [[_difference_bounds(counts, size) for counts in outcomes] for size in sorted(sizes)]
    return tuple(
        GroupSignal(size, fmean(low for low, _ in found), min(1.0, fmean(high for _, high in found)))
        for size, found in zip(sorted(sizes), bounds, strict=True)
    )


def _count_outcomes(rollouts: Sequence[Rollout]) -> Counter[int]:
    """Count rollouts per outcome.

    Equal grades with nearly equal penalties are one outcome, as in `classify_group_variance`.
    """
    outcomes = Counter[int]()
    number, grade, reward = 0, math.nan, math.nan
    for rollout in sorted(rollouts, key=lambda r: (round(r.grade.value / EQUAL_WITHIN), r.reward)):
        if not (abs(rollout.grade.value - grade) <= EQUAL_WITHIN and rollout.reward - reward < MIN_DIFFERENCE):
            number, grade, reward = number + 1, rollout.grade.value, rollout.reward
        outcomes[number] += 1
    return outcomes


def _difference_bounds(counts: Counter[int], size: int) -> tuple[float, float]:
    """Return a lower and an upper bound for the probability that `size` rollouts of a row have different outcomes."""
    n = counts.total()

    def probability(m: int) -> float:
        return 1.0 - sum(comb(count, m) for count in counts.values()) / comb(n, m)

    if size <= n:
        return probability(size), probability(size)
    return probability(n), probability(n) + (size - n) * (probability(n) - probability(n - 1))
