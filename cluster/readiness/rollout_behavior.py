"""Statistics of the rollouts in a readiness check: calls, turns, tokens, time and errors, in total and by tool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from agent_rft.metrics.confidence_intervals import Interval, wilson_interval
from agent_rft.types import Group, Rollout, ToolResult

MODEL_ERRORS = ("malformed_call", "unknown_tool", "invalid_arguments")


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean, median and 95th percentile of a value over rollouts or calls."""

    mean: float
    median: float
    p95: float


@dataclass(frozen=True, slots=True)
class ToolUsage:
    """Use of one tool: number of calls sent to it, number of calls that it answered with an error, and its latency."""

    name: str
    calls: int
    errors: int
    latency_s: Distribution


@dataclass(frozen=True, slots=True)
class RolloutBehavior:
    """Statistics of the graded rollouts in a readiness check.

    Attributes:
        calling: Share of rollouts that called a tool, counting only rows with tools; None if no row has tools.
        invalid_calls: Share of calls that failed because of the model (MODEL_ERRORS); 0 if there are no calls.
        call_errors: Number of failed calls by error.
        ended: Share of rollouts by finish reason: answer, max_steps, max_tokens, context, timeout.
        discarded: Number of discarded rollouts by reason.
        guards: Number of rollouts whose grade was set by a guard, by name of the guard.
        over_target: Share of rollouts in which model and tools took longer than the target; None without a target.
    """

    rollouts: int
    calls: Distribution
    turns: Distribution
    sampled_tokens: Distribution
    busy_s: Distribution
    tools: tuple[ToolUsage, ...]
    calling: float | None
    invalid_calls: Interval
    call_errors: dict[str, int]
    ended: dict[str, float]
    discarded: dict[str, int]
    guards: dict[str, int]
    over_target: float | None = None


def measure_behavior(groups: Sequence[Group], target_s: float | None) -> RolloutBehavior | None:
    """Return the statistics of the rollouts, or None if no rollout was graded."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if not rollouts:
        return None
    with_tools = [rollout for group in groups if group.request.task.tools for rollout in group.rollouts]
    errors = Counter(result.error for rollout in rollouts for result in rollout.results if result.error)
    num_calls = sum(len(rollout.calls) for rollout in rollouts)
    invalid = sum(errors[kind] for kind in MODEL_ERRORS)
    return RolloutBehavior(
        rollouts=len(rollouts),
        calls=summarize_values(len(rollout.calls) for rollout in rollouts),
        turns=summarize_values(len(rollout.turns) for rollout in rollouts),
        sampled_tokens=summarize_values(rollout.num_sampled for rollout in rollouts),
        busy_s=summarize_values(rollout.busy_s for rollout in rollouts),
        tools=_tool_uses(rollouts),
        calling=fmean(_calls_a_tool(rollout) for rollout in with_tools) if with_tools else None,
        invalid_calls=wilson_interval(invalid, num_calls) if num_calls else Interval(0.0, 0.0, 0.0, 0),
        call_errors=dict(errors),
        ended={kind: n / len(rollouts) for kind, n in Counter(r.finish for r in rollouts).items()},
        discarded=dict(Counter(lost.reason for group in groups for lost in group.discarded)),
        guards=dict(Counter(r.grade.guard for r in rollouts if r.grade.guard is not None)),
        over_target=None if target_s is None else fmean(rollout.busy_s > target_s for rollout in rollouts),
    )


def summarize_values(values: Iterable[float]) -> Distribution:
    found = np.fromiter(values, np.float64)
    return Distribution(float(found.mean()), float(np.median(found)), float(np.quantile(found, 0.95)))


def _calls_a_tool(rollout: Rollout) -> bool:
    return any(result.error not in MODEL_ERRORS for result in rollout.results)


def _tool_uses(rollouts: Sequence[Rollout]) -> tuple[ToolUsage, ...]:
    """Return the usage of each tool that received calls, most used tool first."""
    answered: dict[str, list[ToolResult]] = {}
    for rollout in rollouts:
        for call, result in zip(rollout.calls, rollout.results, strict=True):
            if result.error in (None, "tool_error"):
                answered.setdefault(call.name, []).append(result)
    found = (
        ToolUsage(name, len(got), sum(r.error is not None for r in got), summarize_values(r.latency_s for r in got))
        for name, got in answered.items()
    )
    return tuple(sorted(found, key=lambda tool: (-tool.calls, tool.name)))
