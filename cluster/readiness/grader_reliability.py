"""Reliability of a grader: its noise, its number of different grades, and its agreement with the held-out grader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np

from agent_rft.metrics.confidence_intervals import Interval, bootstrap_interval
from agent_rft.types import Group, Rollout

CHANGED = 1e-3
"""Maximum difference at which two grades of an answer count as equal."""
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class GraderFinding:
    """Reliability of the grader, measured on the sampled rollouts.

    Attributes:
        graded: Number of graded rollouts.
        distinct: Number of different grades among these rollouts.
        regraded: Number of answers that got a second grade.
        failed: Number of answers that got no second grade, because the second grading failed.
        changed: Share of the regraded answers whose grade changed; None if no answer was regraded.
        noise: Grader noise as a share of the grade variance within rows; None if unknown or all grades are equal.
        agreement: Correlation between grade and held-out grade within a row, averaged over rows. Rows whose grades are
            all equal are left out. Rows whose held-out grades are all equal count as 0. None without a held-out grader.
    """

    graded: int
    distinct: int
    regraded: int = 0
    failed: int = 0
    changed: float | None = None
    noise: float | None = None
    agreement: Interval | None = None


def measure_grader(groups: Sequence[Group], second_grades: Mapping[str, float | None]) -> GraderFinding:
    """Measure the reliability of the grader.

    `second_grades` contains the answers that were graded twice. It maps the trace id of each answer to the second
    grade, or to None if the second grading failed.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    twice = [(_grade_before_guards(r), second_grades[r.trace_id]) for r in rollouts if r.trace_id in second_grades]
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


def _grade_before_guards(rollout: Rollout) -> float:
    return rollout.grade.scores.get("ungated", rollout.grade.value)


def _noise(groups: Sequence[Group], differences: Sequence[float]) -> float | None:
    """Return the variance of the grading noise, divided by the variance of grades within a row.

    The variance within a row is averaged over all rows. The mean squared difference between two grades of one answer is
    twice the noise variance (Lord and Novick 1968, Statistical Theories of Mental Test Scores, chapter 3).
    """
    within = [variance(map(_grade_before_guards, group.rollouts)) for group in groups if len(group.rollouts) > 1]
    if not differences or not within or fmean(within) == 0.0:
        return None
    return min(1.0, fmean(d * d for d in differences) / 2 / fmean(within))


def _agreement(groups: Sequence[Group]) -> Interval | None:
    """Return the correlation between grades and held-out grades within a row, averaged over rows.

    The correlation shows whether training also raises the held-out grade. Training on the grade raises the held-out
    grade by about the covariance of both grades (Price 1970, Nature 227).
    """
    found = []
    has_held_out = False
    for group in groups:
        pairs = [(r.grade.value, r.grade.held_out) for r in group.rollouts if r.grade.held_out is not None]
        has_held_out |= bool(pairs)
        if len(pairs) < 2:
            continue
        grades, held_out = np.array(pairs, dtype=np.float64).T
        if np.ptp(grades) <= CHANGED:
            continue
        found.append(float(np.corrcoef(grades, held_out)[0, 1]) if np.ptp(held_out) > CHANGED else 0.0)
    return bootstrap_interval(found, bounds=(-1.0, 1.0)) if has_held_out and found else None
