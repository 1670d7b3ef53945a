"""Compares a file graded before and after training: the changes, as texts with units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from trainer.loop.evaluate import half_width_95
from trainer.metrics import EVALUATION
from trainer.metrics.metric import Metric
from trainer.types import Evaluation, Group

Verdict = Literal["better", "worse", "same"]


@dataclass(frozen=True, slots=True)
class Change:
    """One metric of a file before and after training, as text; a dash if it has no value."""

    name: str
    label: str
    before: str
    after: str
    change: str
    relative: str
    verdict: Verdict


def compare(before: Evaluation, after: Evaluation) -> list[Change]:
    """One change per metric of an evaluation; the grade has its 95 % confidence interval."""
    compared = {name: metric for name, metric in EVALUATION.items() if name != "pass_at_k" or after.samples > 1}
    return [_change(before, after, name, metric) for name, metric in compared.items()]


def _change(before: Evaluation, after: Evaluation, name: str, metric: Metric) -> Change:
    old, new = float(getattr(before, name)), float(getattr(after, name))
    difference, form = new - old, metric.pattern
    points = metric.unit == "share"
    change = _number("{:+.1f} points", 100 * difference) if points else _number(form.replace(":", ":+"), difference)
    relative = _number("{:+.0%}", new / old - 1) if old else "–"
    verdict: Verdict = "same"
    if metric.better * difference and math.isfinite(difference):
        verdict = "better" if metric.better * difference > 0 else "worse"
    ci95 = (before.ci95, after.ci95) if name == "grade" else (math.nan, math.nan)
    texts = [_number(form, value) for value in (old, new)]
    shown = [text if math.isnan(ci) else f"{text} ± {ci:.3f}" for text, ci in zip(texts, ci95, strict=True)]
    label = f"pass@{after.samples}" if name == "pass_at_k" else metric.label
    return Change(name, label, shown[0], shown[1], change, relative, verdict)


def _number(form: str, value: float) -> str:
    return form.format(value) if math.isfinite(value) else "–"


def paired_change(before: Sequence[Group], after: Sequence[Group]) -> tuple[float, float, int]:
    """Mean change of a row's grade, half width of its 95 % confidence interval, number of rows graded in both.

    The comparison is paired: each row is compared with itself, so differences between rows do not widen the interval.
    """
    old, new = ({g.request.task.row_id: g for g in groups if g.rollouts} for groups in (before, after))
    changes = [mean_grade(new[row]) - mean_grade(old[row]) for row in new if row in old]
    if not changes:
        return math.nan, math.nan, 0
    return fmean(changes), half_width_95(changes), len(changes)


def mean_grade(group: Group) -> float:
    return fmean(rollout.grade.value for rollout in group.rollouts)
