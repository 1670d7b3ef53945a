"""Comparison of a file's evaluations before and after training, formatted with units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType
from typing import Literal

from agent_rft.metrics import EVALUATION_METRICS
from agent_rft.metrics.confidence_intervals import MIN_VALUES, Interval, paired_interval
from agent_rft.metrics.metric import Metric
from agent_rft.types import Evaluation, Group

Verdict = Literal["better", "worse", "same"]


@dataclass(frozen=True, slots=True)
class BeforeAfterChange:
    """One metric of a file's evaluations before and after training, as text. A missing value is a dash.

    The bounds belong to 95 % confidence intervals. They are empty if there is no interval.
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
    """Return one change per metric.

    For metrics in `paired`, the change and its confidence interval are taken from `paired`.
    """
    left_out = {
        "pass_at_k": after.samples == 1,
        "held_out": math.isnan(before.held_out) and math.isnan(after.held_out),
    }
    names = [name for name in EVALUATION_METRICS if not left_out.get(name)]
    changes = [_compare_metric(before, after, name, EVALUATION_METRICS[name]) for name in names]
    return [
        _with_paired_change(change, paired[change.name], float(getattr(before, change.name)))
        if change.name in paired
        else change
        for change in changes
    ]


def _with_paired_change(change: BeforeAfterChange, found: Interval, old: float) -> BeforeAfterChange:
    verdict: Verdict = "better" if found.low > 0 else "worse" if found.high < 0 else "same"
    difference, bounds = f"{found.mean:+.3f}", found.format_bounds("{:+.3f}")
    relative = _format_relative(found.mean, old)
    return replace(change, change=difference, relative=relative, change_bounds=bounds, verdict=verdict)


def _format_relative(difference: float, old: float) -> str:
    return _format_number("{:+.0%}", difference / old) if old else "–"


def few_rows_warning(evaluation: Evaluation) -> str:
    """Return a warning if an evaluation has few rows, or an empty string."""
    rows = evaluation.graded_rows or evaluation.num_rows
    return f"only {rows} row{'s' * (rows != 1)}: more rows may change this result" if 0 < rows < MIN_VALUES else ""


def _compare_metric(before: Evaluation, after: Evaluation, name: str, metric: Metric) -> BeforeAfterChange:
    old, new = float(getattr(before, name)), float(getattr(after, name))
    difference, form = new - old, metric.pattern
    points = metric.unit == "share"
    scale, change_form = (100, "{:+.1f} points") if points else (1, form.replace(":", ":+"))
    change = _format_number(change_form, scale * difference)
    relative = _format_relative(difference, old)
    verdict: Verdict = "same"
    if metric.better_direction * difference and math.isfinite(difference):
        verdict = "better" if metric.better_direction * difference > 0 else "worse"
    intervals = (before.get_interval(name), after.get_interval(name))
    bounds = ["" if interval is None else interval.format_bounds(form) for interval in intervals]
    label = f"pass@{after.samples}" if name == "pass_at_k" else metric.label
    shown = (_format_number(form, old), _format_number(form, new), change, relative)
    return BeforeAfterChange(name, label, *shown, verdict, *bounds)


def _format_number(pattern: str, value: float) -> str:
    return pattern.format(value) if math.isfinite(value) else "–"


def paired_changes(before: Sequence[Group], after: Sequence[Group]) -> dict[str, Interval]:
    """Return the mean changes of the grade ("grade") and of the held-out grade ("held_out"), with confidence intervals.

    Only rows that have a grade in both evaluations are compared. A metric without such rows is omitted.
    """
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
