"""Comparison of a file's evaluations before and after training, formatted with units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType
from typing import Literal

from agent_rft.metrics import EVALUATION
from agent_rft.metrics.confidence_intervals import MIN_VALUES, Interval, paired_interval
from agent_rft.metrics.metric import Metric
from agent_rft.types import Evaluation, Group

Verdict = Literal["better", "worse", "same"]


@dataclass(frozen=True, slots=True)
class BeforeAfterChange:
    """One metric of a file before and after training, as text; a dash if the value is missing.

    The bounds belong to 95 % confidence intervals and are empty if there is no interval.
    """

    name: str
    label: str
    before: str
    after: str
    change: str
    relative: str
    verdict: Verdict
    before_bounds: str = ""
    after_bounds: str = ""
    change_bounds: str = ""


def compare_before_after(
    before: Evaluation, after: Evaluation, paired: Mapping[str, Interval] = MappingProxyType({})
) -> list[BeforeAfterChange]:
    """Return one change per metric; `paired` has mean changes with each row compared with itself, by metric name."""
    left_out = {
        "pass_at_k": after.samples == 1,
        "held_out": math.isnan(before.held_out) and math.isnan(after.held_out),
    }
    names = [name for name in EVALUATION if not left_out.get(name)]
    changes = [_change(before, after, name, EVALUATION[name]) for name in names]
    return [_paired(change, paired[change.name]) if change.name in paired else change for change in changes]


def _paired(change: BeforeAfterChange, found: Interval) -> BeforeAfterChange:
    verdict: Verdict = "better" if found.low > 0 else "worse" if found.high < 0 else "same"
    difference, bounds = f"{found.mean:+.3f}", found.format_bounds("{:+.3f}")
    return replace(change, change=difference, change_bounds=bounds, verdict=verdict)


def few_note(evaluation: Evaluation) -> str:
    """Return a warning if an evaluation has few rows, else an empty string."""
    rows = evaluation.graded_rows or evaluation.num_rows
    return f"only {rows} row{'s' * (rows != 1)}: more rows may change this result" if 0 < rows < MIN_VALUES else ""


def _change(before: Evaluation, after: Evaluation, name: str, metric: Metric) -> BeforeAfterChange:
    old, new = float(getattr(before, name)), float(getattr(after, name))
    difference, form = new - old, metric.pattern
    points = metric.unit == "share"
    change = _number("{:+.1f} points", 100 * difference) if points else _number(form.replace(":", ":+"), difference)
    relative = _number("{:+.0%}", new / old - 1) if old else "–"
    verdict: Verdict = "same"
    if metric.better * difference and math.isfinite(difference):
        verdict = "better" if metric.better * difference > 0 else "worse"
    intervals = (before.get_interval(name), after.get_interval(name))
    bounds = ["" if interval is None else interval.format_bounds(form) for interval in intervals]
    label = f"pass@{after.samples}" if name == "pass_at_k" else metric.label
    return BeforeAfterChange(name, label, _number(form, old), _number(form, new), change, relative, verdict, *bounds)


def _number(form: str, value: float) -> str:
    return form.format(value) if math.isfinite(value) else "–"


def paired_changes(before: Sequence[Group], after: Sequence[Group]) -> dict[str, Interval]:
    """Return the mean changes of the grade and held-out grade, over the rows that have them in both evaluations."""
    found: dict[str, Interval] = {}
    for name, mean in (("grade", mean_grade), ("held_out", _mean_held_out)):
        old, new = ({g.request.task.row_id: mean(g) for g in groups if g.rollouts} for groups in (before, after))
        both = [row for row in new if row in old]
        interval = paired_interval([old[row] for row in both], [new[row] for row in both])
        found |= {name: interval} if interval.n else {}
    return found


def mean_grade(group: Group) -> float:
    return fmean(rollout.grade.value for rollout in group.rollouts)


def _mean_held_out(group: Group) -> float:
    """Return the mean held-out grade; NaN if no rollout has a held-out grade."""
    grades = [rollout.grade.held_out for rollout in group.rollouts if rollout.grade.held_out is not None]
    return fmean(grades) if grades else math.nan
