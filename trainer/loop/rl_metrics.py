"""Metrics of one RL step: rollouts, trained groups and their staleness, and weight sync."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from agent_rft.trainer.loop.checkpoint import LoopState
from agent_rft.trainer.loop.group_buffer import Batch
from agent_rft.types import DiscardedRollout, Grade, Group, Rollout, SyncReport


def step_metrics(
    batch: Batch, state: LoopState, total_steps: int, trained_version: int, sync: SyncReport | None
) -> dict[str, float]:
    """Return the metrics of the step that resulted in `state`, keyed by names of `agent_rft.metrics`.

    `trained_version` is the policy version from which the step started. `sync` is None if no weights were published.
    """
    groups = batch.all_groups
    metrics = rollout_metrics([r for g in groups for r in g.rollouts], [d for g in groups for d in g.discarded])
    staleness = [trained_version - group.oldest_version for group in batch.to_train]
    metrics |= {
        "step": float(state.step),
        "total_steps": float(total_steps),
        "version": float(state.version),
        "groups_trained": float(len(batch.to_train)),
        "groups_lost": float(batch.num_lost),
        "staleness_mean": sum(staleness) / len(staleness),
        "staleness_max": float(max(staleness)),
    }
    if not math.isnan(ratio := slow_rows_graded_ratio(groups)):
        metrics["slow_rows_graded_ratio"] = ratio
    metrics |= {f"zero_variance_groups/{kind}": float(n) for kind, n in batch.zero_variance.items()}
    if sync is not None:
        metrics |= {
            "sync_pause_s": sync.pause_s,
            "sync_total_s": sync.total_s,
            "sync_bytes": float(sync.num_bytes),
            "canary_gap": sync.canary_gap,
        }
    return metrics


def step_times(started: float, run_started: float) -> dict[str, float]:
    """Return the durations of the current step and of the run so far, from start times of `time.monotonic`."""
    now = time.monotonic()
    return {"time_step_s": now - started, "elapsed_s": now - run_started}


def rollout_metrics(rollouts: Sequence[Rollout], discarded: Sequence[DiscardedRollout] = ()) -> dict[str, float]:
    """Return counts and means over rollouts; without graded rollouts, return only counts."""
    metrics: dict[str, float] = {f"discarded/{k}": float(n) for k, n in Counter(d.reason for d in discarded).items()}
    total = len(rollouts) + len(discarded)
    if total:
        metrics["mean_unresponsive_rewards"] = len(discarded) / total
    metrics["rollouts_graded"] = float(len(rollouts))
    if not rollouts:
        return metrics
    calling = [turn for r in rollouts for turn in r.turns if turn.calls]
    metrics |= {
        "train_mean_reward": fmean(r.reward for r in rollouts),
        "train_mean_grade": fmean(r.grade.value for r in rollouts),
        "tool_calls_mean": fmean(len(r.calls) for r in rollouts),
        "turns_mean": fmean(len(r.turns) for r in rollouts),
        "parallel_turn_share": sum(len(t.calls) > 1 for t in calling) / len(calling) if calling else 0.0,
        "completion_tokens_mean": fmean(r.num_sampled for r in rollouts),
        "reasoning_tokens_mean": fmean(r.reasoning_tokens for r in rollouts),
        "rollout_tokens_mean": fmean(r.num_tokens for r in rollouts),
        "segments_mean": fmean(len(r.segments) for r in rollouts),
        "rollout_busy_s_mean": fmean(r.busy_s for r in rollouts),
        "rollout_wall_s_mean": fmean(r.wall_s for r in rollouts),
        "rollout_wall_s_p50": median(r.wall_s for r in rollouts),
        "rollout_wall_s_p95": float(np.quantile([r.wall_s for r in rollouts], 0.95)),
        "grade_latency_s_mean": fmean(r.grade.latency_s for r in rollouts),
    }
    for finish, count in Counter(r.finish for r in rollouts).items():
        metrics[f"finish/{finish}"] = float(count)
    return metrics | _grade_metrics([r.grade for r in rollouts]) | _tool_metrics(rollouts)


def part_metric(part: str) -> str:
    """Return the name of the metric for one part of the grader."""
    return f"grader/{part}/score_mean"


def _grade_metrics(grades: Sequence[Grade]) -> dict[str, float]:
    """Return the metrics of graders, guards and judges.

    A grade may consist of parts. The mean of a part covers only the grades that have this part.
    """
    metrics: dict[str, float] = {}
    for part in dict.fromkeys(part for grade in grades for part in grade.scores):
        metrics[part_metric(part)] = fmean(g.scores[part] for g in grades if part in g.scores)
    for guard, count in Counter(grade.guard for grade in grades if grade.guard is not None).items():
        metrics[f"guard/{guard}"] = float(count)
    held_out = [grade.held_out for grade in grades if grade.held_out is not None]
    if held_out:
        metrics["held_out_grade_mean"] = fmean(held_out)
    if failures := sum(bool(grade.held_out_error) for grade in grades):
        metrics["held_out_failures"] = float(failures)
    if untrained := sum(not grade.train for grade in grades):
        metrics["rollouts_untrained"] = float(untrained)
    for grade in grades:
        for model, num_tokens in grade.judge_tokens.items():
            metrics[f"judge_tokens/{model}"] = metrics.get(f"judge_tokens/{model}", 0.0) + num_tokens
    return metrics


def slow_rows_graded_ratio(groups: Sequence[Group]) -> float:
    """Return the graded share of rollouts in the slowest quarter of groups, divided by the graded share in all groups.

    The graded share is the number of graded rollouts divided by the number of requested rollouts. Returns NaN if there
    are fewer than four groups or no graded rollouts.
    """
    slow = sorted(groups, key=lambda group: group.wall_s)[-(len(groups) // 4) :] if len(groups) >= 4 else []

    def share(some: Sequence[Group]) -> float:
        return sum(len(group.rollouts) for group in some) / max(1, sum(group.request.size for group in some))

    return share(slow) / share(groups) if slow and share(groups) else math.nan


def _tool_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    pairs = [pair for r in rollouts for pair in zip(r.calls, r.results, strict=True)]
    for kind, count in Counter(result.error for _, result in pairs if result.error).items():
        metrics[f"call_errors/{kind}"] = float(count)
    answered: dict[str, list[tuple[float, int, bool]]] = {}
    for call, result in pairs:
        if result.error in (None, "tool_error"):
            row = (result.latency_s, len(result.output), result.error is not None)
            answered.setdefault(call.name, []).append(row)
    for name, rows in answered.items():
        metrics[f"tool/{name}/calls_mean"] = len(rows) / len(rollouts)
        metrics[f"tool/{name}/latency_s_mean"] = fmean(row[0] for row in rows)
        metrics[f"tool/{name}/output_chars_mean"] = fmean(row[1] for row in rows)
        metrics[f"tool/{name}/errors"] = float(sum(row[2] for row in rows))
    tokens: dict[str, list[float]] = {}
    for name, num_tokens in (pair for r in rollouts for pair in _tool_tokens(r)):
        tokens.setdefault(name, []).append(num_tokens)
    return metrics | {f"tool/{name}/output_tokens_mean": fmean(counts) for name, counts in tokens.items()}


def _tool_tokens(rollout: Rollout) -> list[tuple[str, float]]:
    """Return (tool name, number of output tokens) of each call.

    The number is an estimate: the tokens between a turn and the next turn are divided among the turn's calls, in
    proportion to the length of each call's output. Calls are omitted if the next turn is in another segment, or if
    there is no next turn.
    """
    found = []
    for turn, after in zip(rollout.turns, rollout.turns[1:], strict=False):
        if after.segment != turn.segment:
            continue
        lengths = [len(result.output) for result in turn.results]
        total = sum(lengths)
        for call, length in zip(turn.calls, lengths, strict=True):
            share = length / total if total else 1 / len(lengths)
            found.append((call.name, share * max(0, after.start - turn.stop)))
    return found
