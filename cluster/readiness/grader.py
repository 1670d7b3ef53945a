"""How far a grader's differences can be trusted: its noise, its steps, and whether the held-out grader agrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np

from agent_rft.metrics.intervals import Interval, bootstrap_mean
from agent_rft.types import Group, Rollout

CHANGED = 1e-3
"""Grades of one answer that differ by less count as equal."""
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class GraderFinding:
    """What the grades of these rollouts say about the grader.

    Attributes:
        distinct: Different grades, of `graded` rollouts.
        regraded: Answers that were graded a second time; `failed` of the tries ended without a grade.
        changed: Share of them whose grade changed; None if none was graded twice.
        noise: Share of the variance between the rollouts of a row that is the grader's own; None if nothing differs.
        agreement: Mean over rows of the correlation between grade and held-out grade within a row, over the rows in
            which the grades differ (0 if the held-out grades are equal there); None without a held-out grader.
    """

    graded: int
    distinct: int
    regraded: int = 0
    failed: int = 0
    changed: float | None = None
    noise: float | None = None
    agreement: Interval | None = None


def grader_finding(groups: Sequence[Group], again: Mapping[str, float | None]) -> GraderFinding:
    """`again`: trace id -> the grade of the same answer graded once more, None if that failed."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    twice = [(_ungated(r), again[r.trace_id]) for r in rollouts if r.trace_id in again]
    pairs = [(first, second) for first, second in twice if second is not None]
    differences = [second - first for first, second in pairs]
    return GraderFinding(
        graded=len(rollouts),
        distinct=len({round(rollout.grade.value, _DIGITS) for rollout in rollouts}),
        regraded=len(pairs),
        failed=len(twice) - len(pairs),
        changed=fmean(abs(difference) > CHANGED for difference in differences) if pairs else None,
        noise=_noise(groups, differences),
        agreement=_agreement(groups),
    )


def _ungated(rollout: Rollout) -> float:
    """What the grader gave, before guards."""
    return rollout.grade.scores.get("ungated", rollout.grade.value)


def _noise(groups: Sequence[Group], differences: Sequence[float]) -> float | None:
    """Two grades of one answer differ by twice the variance of the noise: 1 - the test-retest reliability.

    Lord and Novick 1968, Statistical Theories of Mental Test Scores, chapter 3.
    """
    within = [variance(map(_ungated, group.rollouts)) for group in groups if len(group.rollouts) > 1]
    if not differences or not within or fmean(within) == 0.0:
        return None
    return min(1.0, fmean(d * d for d in differences) / 2 / fmean(within))


def _agreement(groups: Sequence[Group]) -> Interval | None:
    """To first order, the held-out grade gains the covariance with the grade within rows: Price 1970, Nature 227."""
    found = []
    known = False
    for group in groups:
        pairs = [(r.grade.value, r.grade.held_out) for r in group.rollouts if r.grade.held_out is not None]
        known |= bool(pairs)
        if len(pairs) < 2:
            continue
        grades, held_out = np.array(pairs, dtype=np.float64).T
        if np.ptp(grades) <= CHANGED:
            continue
        found.append(float(np.corrcoef(grades, held_out)[0, 1]) if np.ptp(held_out) > CHANGED else 0.0)
    return bootstrap_mean(found, bounds=(-1.0, 1.0)) if known and found else None
