"""Statistics of a comparison: changes between evaluations of the same rows, with confidence intervals.

All statistics are paired: each row is compared with itself, by id. A row with several samples counts once, by their
means. Rollouts without a finite grade and reward count as not graded. `agent_rft.metrics.confidence_intervals` computes
the intervals.
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
from agent_rft.metrics import EVALUATION
from agent_rft.metrics.confidence_intervals import GRADES, Interval, paired_interval
from agent_rft.metrics.metric import Metric

Verdict = Literal["better", "worse", "unclear", "same"]
NO_TOOL = "(none)"
"""Name in place of the first and last tool of a rollout without calls."""
REWARD: Mapping[int, str] = {1: "reward up", 0: "same reward", -1: "reward down"}
CALLS: Mapping[int, str] = {-1: "fewer calls", 0: "as many calls", 1: "more calls"}
"""Names of the quadrants, by the sign of the change."""
SLOW: Final = "slow_share"
"""Additional measure if there is a target latency: the share of a row's rollouts that exceed it."""
BEST: Final = "best_of_"
"""Prefix of the measure `best_of_k`, with k samples per row."""
EQUAL = 1e-9
"""Rounding error of means; smaller changes count as 0."""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """Row that all sides have graded, with its rollouts and the means of their measures at each side.

    If each row has at least k > 1 rollouts at each side, `means` includes `best_of_k`, the best grade of the first k.
    """

    row_id: str
    question: str
    rollouts: tuple[tuple[RolloutBrief, ...], ...]
    means: tuple[Mapping[str, float], ...]

    def change(self, name: str, side: int) -> float:
        """Return the change of a measure from the first side to `side`."""
        difference = self.means[side][name] - self.means[0][name]
        return difference if abs(difference) > EQUAL else 0.0


@dataclass(frozen=True, slots=True)
class MeasureChange:
    """One measure at the first and at another side: means over the rows, and the change with its interval."""

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
        """Verdict on the change; better or worse only if the interval excludes 0."""
        low, high, better = self.interval.low, self.interval.high, self.metric.better
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
    """Use of a tool at one side.

    `calls` are per rollout; `failed` and `repeated` are shares of the tool's calls; `first` and `last` are shares of
    rollouts that start or end with the tool.
    """

    calls: float
    failed: float
    repeated: float
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class SideSummary:
    """Statistics of a side's rollouts of the compared rows. `tools` has NO_TOOL if some rollouts call no tool."""

    num_rollouts: int
    means: Mapping[str, float]
    turns_p95: float
    busy_p95_s: float
    repeated: float
    tools: Mapping[str, SideToolUse]


@dataclass(frozen=True, slots=True)
class SideComparison:
    """Another side compared with the first. `quadrants` counts rows by the signs of the changes in reward and calls."""

    changes: tuple[MeasureChange, ...]
    quadrants: Counter[tuple[int, int]]
    gained: tuple[ComparisonRow, ...]
    lost: tuple[ComparisonRow, ...]


@dataclass(frozen=True, slots=True)
class EvaluationComparison:
    """Comparison of several sides with the first one.

    For each side, `only` has the ids of its rows that another side lacks, and `ungraded` the ids of shared rows that it
    has not graded.
    """

    sides: tuple[LoadedEvaluation, ...]
    rows: tuple[ComparisonRow, ...]
    only: tuple[tuple[str, ...], ...]
    ungraded: tuple[tuple[str, ...], ...]
    summaries: tuple[SideSummary, ...]
    against: tuple[SideComparison, ...]

    @property
    def tools(self) -> list[str]:
        """All tools, the most called first."""
        calls: Counter[str] = Counter()
        for summary in self.summaries:
            calls.update({name: int(1e6 * use.calls) for name, use in summary.tools.items()})
        return [name for name, _ in calls.most_common()]


def compare_evaluations(
    sides: Sequence[LoadedEvaluation], num_shown: int, target_s: float | None = None
) -> EvaluationComparison:
    """Compare other sides with the first; `num_shown` limits the lists of rows that gained and lost most.

    With `target_s`, a target for the model and tool time of a rollout, the share of slower rollouts is compared too.

    Raises:
        UserError: No row was graded at all sides.
    """
    found = [side.rows for side in sides]
    shared = [row_id for row_id in found[0] if all(row_id in rows for rows in found)]
    graded = [row_id for row_id in shared if all(rows[row_id].rollouts for rows in found)]
    if not graded:
        raise _nothing_shared(sides, found, shared)
    k = min(len(rows[row_id].rollouts) for rows in found for row_id in graded)
    rows = tuple(_row(row_id, [rows[row_id] for rows in found], k, target_s) for row_id in graded)
    metrics = {name: EVALUATION[name] for name in MEASURES if _rows_with(rows, name)}
    if k > 1:
        metrics[f"{BEST}{k}"] = Metric(f"best of {k}", "", "mean over rows of their best grade", better=1)
    if target_s is not None:
        metrics[SLOW] = _slower(target_s)
    return EvaluationComparison(
        sides=tuple(sides),
        rows=rows,
        only=tuple(tuple(row_id for row_id in rows if row_id not in set(shared)) for rows in found),
        ungraded=tuple(tuple(row_id for row_id in shared if not rows[row_id].rollouts) for rows in found),
        summaries=tuple(_summary(rows, side, metrics) for side in range(len(sides))),
        against=tuple(_against(rows, side, metrics, num_shown) for side in range(1, len(sides))),
    )


def _slower(target_s: float) -> Metric:
    return Metric(f"rollouts slower than {target_s:g} s", "share", "by model and tool time", form="{:.1%}", better=-1)


def _nothing_shared(
    sides: Sequence[LoadedEvaluation], found: Sequence[Mapping[str, GradedRow]], shared: Sequence[str]
) -> UserError:
    counts = "; ".join(
        f"{side.label} has {len(rows)} rows ({side.name})" for side, rows in zip(sides, found, strict=True)
    )
    if shared:
        problem = f"none of the {len(shared)} shared rows was graded at all sides"
        return UserError(f"{problem}: {counts}. Read the errors with agent-rft traces RUN --name NAME.")
    return UserError(
        f"the sides graded different rows: {counts}. Rows match if line and content are equal. Grade the same file "
        "with both: agent-rft eval JOB --file test_file --model FOLDER, or give two model folders with --job JOB."
    )


def _row(row_id: str, graded: Sequence[GradedRow], k: int, target_s: float | None) -> ComparisonRow:
    rollouts = tuple(side.rollouts for side in graded)
    return ComparisonRow(row_id, graded[0].question, rollouts, tuple(_means(side, k, target_s) for side in rollouts))


def _means(rollouts: Sequence[RolloutBrief], k: int, target_s: float | None) -> dict[str, float]:
    means = {name: _mean(brief.measures[name] for brief in rollouts) for name in MEASURES}
    if k > 1:
        means[f"{BEST}{k}"] = max(brief.measures["grade"] for brief in rollouts[:k])
    if target_s is not None:
        means[SLOW] = fmean(brief.measures["busy_s"] > target_s for brief in rollouts)
    return means


def _mean(values: Iterable[float]) -> float:
    """Return the mean of the available values; NaN if there are none."""
    found = [value for value in values if not math.isnan(value)]
    return fmean(found) if found else math.nan


def _rows_with(rows: Sequence[ComparisonRow], name: str) -> list[ComparisonRow]:
    """Return the rows that have this measure at all sides; it is missing where the held-out grader failed."""
    return [row for row in rows if not any(math.isnan(means[name]) for means in row.means)]


# -- against the first side --------------------------------------------------------------------------------------------


def _against(rows: Sequence[ComparisonRow], side: int, metrics: Mapping[str, Metric], num_shown: int) -> SideComparison:
    quadrants = Counter((_sign(row.change("reward", side)), _sign(row.change("tool_calls", side))) for row in rows)
    by_reward = sorted(rows, key=lambda row: row.change("reward", side))
    return SideComparison(
        changes=tuple(_change(rows, side, name, metric) for name, metric in metrics.items()),
        quadrants=quadrants,
        gained=tuple(row for row in by_reward[::-1][:num_shown] if row.change("reward", side) > 0),
        lost=tuple(row for row in by_reward[:num_shown] if row.change("reward", side) < 0),
    )


def _change(rows: Sequence[ComparisonRow], side: int, name: str, metric: Metric) -> MeasureChange:
    before, found = ([row.means[i][name] for row in _rows_with(rows, name)] for i in (0, side))
    after = [old if abs(new - old) <= EQUAL else new for old, new in zip(before, found, strict=True)]
    interval = paired_interval(before, after, _bounds(name, (*before, *after)))
    return MeasureChange(name, fmean(before), fmean(after), interval, metric)


def _bounds(name: str, values: Sequence[float]) -> tuple[float, float] | None:
    """Return the range of possible values, or None if unknown. Counts range from 0 to the largest observed value."""
    if name in ("grade", HELD_OUT, "reward", SLOW) or name.startswith(BEST):
        return GRADES if all(0 <= value <= 1 for value in values) else None
    return (0.0, max(values)) if name in ("tool_calls", "turns") else None


def _sign(value: float) -> int:
    return 1 if value > 0 else -1 if value < 0 else 0


# -- one side ----------------------------------------------------------------------------------------------------------


def _summary(rows: Sequence[ComparisonRow], side: int, metrics: Mapping[str, Metric]) -> SideSummary:
    rollouts = [rollout for row in rows for rollout in row.rollouts[side]]
    return SideSummary(
        num_rollouts=len(rollouts),
        means={name: fmean(row.means[side][name] for row in _rows_with(rows, name)) for name in metrics},
        turns_p95=float(np.percentile([rollout.measures["turns"] for rollout in rollouts], 95)),
        busy_p95_s=float(np.percentile([rollout.measures["busy_s"] for rollout in rollouts], 95)),
        repeated=sum(len(rollout.repeated) for rollout in rollouts) / len(rollouts),
        tools=_tools(rollouts),
    )


def _tools(rollouts: Sequence[RolloutBrief]) -> dict[str, SideToolUse]:
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
    """Return all statistics, and each compared row with its means and trace ids at each side."""
    return {
        "sides": [
            {"label": side.label, "run": side.run, "name": side.name}
            | {"rows_of_this_side_only": list(only), "rows_not_graded": list(ungraded)}
            | _summary_json(summary)
            for side, only, ungraded, summary in zip(
                comparison.sides, comparison.only, comparison.ungraded, comparison.summaries, strict=True
            )
        ],
        "changes": [_against_json(against) for against in comparison.against],
        "rows": [_row_json(row) for row in comparison.rows],
    }


def _summary_json(summary: SideSummary) -> dict[str, Any]:
    tools = {name: {part: getattr(use, part) for part in SideToolUse.__slots__} for name, use in summary.tools.items()}
    return {part: getattr(summary, part) for part in SideSummary.__slots__} | {
        "means": dict(summary.means),
        "tools": tools,
    }


def _against_json(against: SideComparison) -> dict[str, Any]:
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
