"""Statistics of a comparison: changes between evaluations of the same rows, with confidence intervals.

A side is one of the compared evaluations; all other sides are compared with the first side. All statistics are paired:
each row is compared with the row that has the same id in the other evaluation. A row with several samples counts once,
with the means of its samples. A rollout counts as not graded if its grade or its reward is not finite. The intervals
are computed by `agent_rft.metrics.confidence_intervals`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, Literal

import numpy as np

from agent_rft.cluster.views.comparison.loaded_evaluation import (
    HELD_OUT,
    MEASURES,
    GradedRow,
    LoadedEvaluation,
    RolloutBrief,
)
from agent_rft.errors import UserError
from agent_rft.metrics import EVALUATION_METRICS
from agent_rft.metrics.confidence_intervals import GRADES, Interval, paired_interval
from agent_rft.metrics.metric import Metric
from agent_rft.metrics.missing_rollouts import MAX_ROUNDING_ERROR
from agent_rft.types import Evaluation

Verdict = Literal["better", "worse", "unclear", "same"]
NO_TOOL = "(none)"
"""Placeholder tool name for rollouts that call no tool."""
REWARD_CHANGE_LABELS: Mapping[int, str] = {1: "reward up", 0: "same reward", -1: "reward down"}
CALL_CHANGE_LABELS: Mapping[int, str] = {-1: "fewer calls", 0: "as many calls", 1: "more calls"}
"""Labels for a change in the number of tool calls, by the sign of the change."""
SLOW_SHARE: Final = "slow_share"
"""Name of a measure: share of a row's rollouts that exceed the latency target. Exists only if there is a target."""
BEST_OF_PREFIX: Final = "best_of_"
"""Prefix of measure names: "best_of_4" is the best grade among the first 4 rollouts of a row."""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """Row that was graded in all compared evaluations (sides). `rollouts` and `means` have one entry per side.

    If each row has at least k > 1 rollouts on each side, `means` includes `best_of_k`, the best grade among the row's
    first k rollouts.
    """

    row_id: str
    question: str
    rollouts: tuple[tuple[RolloutBrief, ...], ...]
    means: tuple[Mapping[str, float], ...]

    def change(self, name: str, side: int) -> float:
        """Return the change of a measure from the first evaluation to the evaluation with index `side`."""
        difference = self.means[side][name] - self.means[0][name]
        return difference if abs(difference) > MAX_ROUNDING_ERROR else 0.0


@dataclass(frozen=True, slots=True)
class MeasureChange:
    """Change of one measure from the first evaluation (`before`) to another (`after`), with a confidence interval.

    `before` and `after` are means over the rows.
    """

    name: str
    before: float
    after: float
    interval: Interval
    metric: Metric

    @property
    def label(self) -> str:
        return self.metric.label

    @property
    def verdict(self) -> Verdict:
        """Verdict on the change, based on the confidence interval."""
        low, high, better = self.interval.low, self.interval.high, self.metric.better_direction
        if self.interval.mean == 0.0 and not low < high:
            return "same"
        if low > 0 or high < 0:
            return "better" if better * self.interval.mean > 0 else "worse"
        return "unclear"

    def text(self, value: float) -> str:
        return self.metric.format(value)

    @property
    def change(self) -> str:
        return self.interval.format(self.metric.pattern.replace(":", ":+"))


@dataclass(frozen=True, slots=True)
class SideToolUse:
    """Use of a tool in one of the compared evaluations.

    `calls` is the mean number of calls per rollout. `failed` and `repeated` are shares of the tool's calls. `first` is
    the share of rollouts whose first call is to this tool. `last` is the share of rollouts whose last call is to this
    tool.
    """

    calls: float
    failed: float
    repeated: float
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class SideSummary:
    """Statistics of one evaluation, over the compared rows. `tools` includes NO_TOOL if some rollouts call no tool."""

    num_rollouts: int
    means: Mapping[str, float]
    turns_p95: float
    busy_p95_s: float
    repeated: float
    tools: Mapping[str, SideToolUse]


@dataclass(frozen=True, slots=True)
class SideComparison:
    """Comparison of an evaluation with the first one.

    `quadrants` counts rows by the signs of the changes in reward and in calls. `gained` and `lost` are the rows whose
    reward rose or fell most.
    """

    changes: tuple[MeasureChange, ...]
    quadrants: Counter[tuple[int, int]]
    gained: tuple[ComparisonRow, ...]
    lost: tuple[ComparisonRow, ...]


@dataclass(frozen=True, slots=True)
class EvaluationComparison:
    """Comparison of several evaluations (sides) with the first one.

    `unshared_rows` lists each side's rows that another side lacks. `ungraded` lists each side's shared rows without a
    grade.
    """

    sides: tuple[LoadedEvaluation, ...]
    rows: tuple[ComparisonRow, ...]
    unshared_rows: tuple[tuple[str, ...], ...]
    ungraded: tuple[tuple[str, ...], ...]
    summaries: tuple[SideSummary, ...]
    side_comparisons: tuple[SideComparison, ...]

    @property
    def tools(self) -> list[str]:
        """Names of all tools; the tool with the most calls comes first."""
        calls: Counter[str] = Counter()
        for summary in self.summaries:
            calls.update({name: int(1e6 * use.calls) for name, use in summary.tools.items()})
        return [name for name, _ in calls.most_common()]


def compare_evaluations(
    sides: Sequence[LoadedEvaluation], num_shown: int, target_s: float | None = None
) -> EvaluationComparison:
    """Compare each evaluation with the first one. `num_shown` limits the lists of rows that gained or lost most.

    `target_s` is a target for the model and tool time of a rollout. If it is set, the share of slower rollouts is also
    compared.

    Raises:
        UserError: There is no row that was graded in all evaluations.
    """
    found = [side.rows for side in sides]
    shared = [row_id for row_id in found[0] if all(row_id in rows for rows in found)]
    graded = [row_id for row_id in shared if all(rows[row_id].rollouts for rows in found)]
    if not graded:
        raise _no_common_row_error(sides, found, shared)
    k = min(len(rows[row_id].rollouts) for rows in found for row_id in graded)
    rows = tuple(_make_row(row_id, [rows[row_id] for rows in found], k, target_s) for row_id in graded)
    metrics = {name: EVALUATION_METRICS[name] for name in MEASURES if _rows_with(rows, name)}
    if k > 1:
        metrics[f"{BEST_OF_PREFIX}{k}"] = Metric(
            f"best of {k}", "", "mean of each row's best grade", better_direction=1
        )
    if target_s is not None:
        metrics[SLOW_SHARE] = _slow_share_metric(target_s)
    return EvaluationComparison(
        sides=tuple(sides),
        rows=rows,
        unshared_rows=tuple(tuple(row_id for row_id in rows if row_id not in set(shared)) for rows in found),
        ungraded=tuple(tuple(row_id for row_id in shared if not rows[row_id].rollouts) for rows in found),
        summaries=tuple(_summarize_side(rows, side, metrics) for side in range(len(sides))),
        side_comparisons=tuple(_compare_with_first(rows, side, metrics, num_shown) for side in range(1, len(sides))),
    )


def _slow_share_metric(target_s: float) -> Metric:
    return Metric(
        f"rollouts slower than {target_s:g} s",
        "share",
        "by model and tool time",
        value_format="{:.1%}",
        better_direction=-1,
    )


def _no_common_row_error(
    sides: Sequence[LoadedEvaluation], found: Sequence[Mapping[str, GradedRow]], shared: Sequence[str]
) -> UserError:
    counts = "; ".join(
        f"{side.label} has {len(rows)} rows ({side.name})" for side, rows in zip(sides, found, strict=True)
    )
    if shared:
        problem = f"none of the {len(shared)} shared rows was graded in all evaluations"
        return UserError(f"{problem}: {counts}. Read the errors with agent-rft traces RUN --name NAME.")
    return UserError(
        f"the evaluations graded different rows: {counts}. Rows match if their line numbers and contents are equal. "
        "Evaluate both models on the same file: run agent-rft eval JOB --file test_file --model FOLDER for each model, "
        "or compare two model folders with --job JOB."
    )


def _make_row(row_id: str, graded: Sequence[GradedRow], k: int, target_s: float | None) -> ComparisonRow:
    rollouts = tuple(side.rollouts for side in graded)
    return ComparisonRow(
        row_id, graded[0].question, rollouts, tuple(_measure_means(side, k, target_s) for side in rollouts)
    )


def _measure_means(rollouts: Sequence[RolloutBrief], k: int, target_s: float | None) -> dict[str, float]:
    means = {name: _mean(brief.measures[name] for brief in rollouts) for name in MEASURES}
    if k > 1:
        means[f"{BEST_OF_PREFIX}{k}"] = max(brief.measures["grade"] for brief in rollouts[:k])
    if target_s is not None:
        means[SLOW_SHARE] = fmean(brief.measures["busy_s"] > target_s for brief in rollouts)
    return means


def _mean(values: Iterable[float]) -> float:
    """Return the mean of the available values; NaN if there are none."""
    found = [value for value in values if not math.isnan(value)]
    return fmean(found) if found else math.nan


def _rows_with(rows: Sequence[ComparisonRow], name: str) -> list[ComparisonRow]:
    """Return the rows that have the measure `name` in all evaluations.

    For example, the held-out grade is missing if the held-out grader failed.
    """
    return [row for row in rows if not any(math.isnan(means[name]) for means in row.means)]


# -- against the first side --------------------------------------------------------------------------------------------


def _compare_with_first(
    rows: Sequence[ComparisonRow], side: int, metrics: Mapping[str, Metric], num_shown: int
) -> SideComparison:
    quadrants = Counter((_sign(row.change("reward", side)), _sign(row.change("tool_calls", side))) for row in rows)
    by_reward = sorted(rows, key=lambda row: row.change("reward", side))
    return SideComparison(
        changes=tuple(_measure_change(rows, side, name, metric) for name, metric in metrics.items()),
        quadrants=quadrants,
        gained=tuple(row for row in by_reward[::-1][:num_shown] if row.change("reward", side) > 0),
        lost=tuple(row for row in by_reward[:num_shown] if row.change("reward", side) < 0),
    )


def _measure_change(rows: Sequence[ComparisonRow], side: int, name: str, metric: Metric) -> MeasureChange:
    before, found = ([row.means[i][name] for row in _rows_with(rows, name)] for i in (0, side))
    after = [old if abs(new - old) <= MAX_ROUNDING_ERROR else new for old, new in zip(before, found, strict=True)]
    interval = paired_interval(before, after, _value_range(name, (*before, *after)))
    return MeasureChange(name, fmean(before), fmean(after), interval, metric)


def _value_range(name: str, values: Sequence[float]) -> tuple[float, float] | None:
    """Return the range of possible values, or None if unknown. Counts range from 0 to the largest observed value."""
    if name in ("grade", HELD_OUT, "reward", SLOW_SHARE) or name.startswith(BEST_OF_PREFIX):
        return GRADES if all(0 <= value <= 1 for value in values) else None
    return (0.0, max(values)) if name in ("tool_calls", "turns") else None


def _sign(value: float) -> int:
    return 1 if value > 0 else -1 if value < 0 else 0


# -- one side ----------------------------------------------------------------------------------------------------------


def _summarize_side(rows: Sequence[ComparisonRow], side: int, metrics: Mapping[str, Metric]) -> SideSummary:
    rollouts = [rollout for row in rows for rollout in row.rollouts[side]]
    return SideSummary(
        num_rollouts=len(rollouts),
        means={name: fmean(row.means[side][name] for row in _rows_with(rows, name)) for name in metrics},
        turns_p95=float(np.percentile([rollout.measures["turns"] for rollout in rollouts], 95)),
        busy_p95_s=float(np.percentile([rollout.measures["busy_s"] for rollout in rollouts], 95)),
        repeated=sum(len(rollout.repeated) for rollout in rollouts) / len(rollouts),
        tools=_summarize_tools(rollouts),
    )


def _summarize_tools(rollouts: Sequence[RolloutBrief]) -> dict[str, SideToolUse]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for rollout in rollouts:
        names = rollout.calls or (NO_TOOL,)
        counts[names[0]]["first"] += 1
        counts[names[-1]]["last"] += 1
        for kind, called in (("calls", rollout.calls), ("failed", rollout.failed), ("repeated", rollout.repeated)):
            for name in called:
                counts[name][kind] += 1
    n = len(rollouts)
    return {
        name: SideToolUse(
            calls=count["calls"] / n,
            failed=count["failed"] / max(1, count["calls"]),
            repeated=count["repeated"] / max(1, count["calls"]),
            first=count["first"] / n,
            last=count["last"] / n,
        )
        for name, count in counts.items()
    }


# -- JSON --------------------------------------------------------------------------------------------------------------


def comparison_json(comparison: EvaluationComparison) -> dict[str, Any]:
    """Return all statistics as JSON, with the means and trace ids of each compared row in each evaluation."""
    return {
        "sides": [
            {"label": side.label, "run": side.run, "name": side.name}
            | {"rows_of_this_side_only": list(only), "rows_not_graded": list(ungraded)}
            | missing_json(side.recorded)
            | _summary_json(summary)
            for side, only, ungraded, summary in zip(
                comparison.sides, comparison.unshared_rows, comparison.ungraded, comparison.summaries, strict=True
            )
        ],
        "changes": [_side_comparison_json(against) for against in comparison.side_comparisons],
        "rows": [_row_json(row) for row in comparison.rows],
    }


def missing_json(evaluation: Evaluation | None) -> dict[str, Any]:
    """Return the number of rollouts without a grade and the bounds of the mean grade; null if unknown."""
    bounds = None if evaluation is None else evaluation.missing_bounds.get("grade")
    return {
        "num_missing": None if evaluation is None else evaluation.num_missing,
        "grade_if_wrong": None if bounds is None else bounds[0],
        "grade_if_right": None if bounds is None else bounds[1],
    }


def _summary_json(summary: SideSummary) -> dict[str, Any]:
    tools = {name: {part: getattr(use, part) for part in SideToolUse.__slots__} for name, use in summary.tools.items()}
    return {part: getattr(summary, part) for part in SideSummary.__slots__} | {
        "means": dict(summary.means),
        "tools": tools,
    }


def _side_comparison_json(against: SideComparison) -> dict[str, Any]:
    words = {1: "up", 0: "same", -1: "down"}
    return {
        "measures": {
            change.name: {"before": change.before, "after": change.after, "change": change.interval.mean}
            | {"low": change.interval.low, "high": change.interval.high, "verdict": change.verdict}
            for change in against.changes
        },
        "quadrants": [
            {"reward": words[reward], "tool_calls": words[calls], "rows": count}
            for (reward, calls), count in sorted(against.quadrants.items(), reverse=True)
        ],
        "gained": [row.row_id for row in against.gained],
        "lost": [row.row_id for row in against.lost],
    }


def _row_json(row: ComparisonRow) -> dict[str, Any]:
    sides = zip(row.means, row.rollouts, strict=True)
    return {
        "row_id": row.row_id,
        "sides": [
            {name: means[name] for name in MEASURES} | {"trace_ids": [rollout.trace_id for rollout in rollouts]}
            for means, rollouts in sides
        ],
    }
