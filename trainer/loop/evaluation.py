"""Evaluation of one policy version on all rows of a file. Seeds are fixed; results have confidence intervals."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from statistics import fmean

from agent_rft.errors import first_error
from agent_rft.loop_protocols import RolloutService
from agent_rft.metrics.confidence_intervals import bootstrap_interval
from agent_rft.metrics.pass_at_k import pass_at_k
from agent_rft.trainer.loop.rl_metrics import rollout_metrics
from agent_rft.types import DiscardedRollout, Evaluation, Group, GroupRequest, Purpose, Rollout, Task

MAX_CONCURRENT_GROUPS = 512
"""Maximum number of concurrent groups. It only bounds the engines' queues; engines limit their own concurrency."""


async def evaluate(
    rollouts: RolloutService,
    tasks: Sequence[Task],
    purpose: Purpose,
    samples: int,
    temperature: float,
    pass_threshold: float,
) -> tuple[Evaluation, list[Group]]:
    """Sample and grade each task `samples` times; return the evaluation and the groups.

    Seeds depend only on row and sample, not on epoch or attempt.
    """
    slots = asyncio.Semaphore(MAX_CONCURRENT_GROUPS)

    async def sample_task(index: int, task: Task) -> Group:
        async with slots:
            return await rollouts.sample(GroupRequest(task, 0, index, samples, purpose, temperature))

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(sample_task(i, task)) for i, task in enumerate(tasks)]
    except ExceptionGroup as errors:
        raise first_error(errors) from errors
    groups = [task.result() for task in running]
    return summarize(groups, samples, pass_threshold), groups


def summarize(groups: Sequence[Group], samples: int, pass_threshold: float) -> Evaluation:
    """Compute the evaluation of graded groups; values are NaN if nothing was graded.

    Grades and pass rates are means over rows, where a row's value is the mean of its rollouts. All other values are
    means over rollouts.
    """
    graded: list[Rollout] = [rollout for group in groups for rollout in group.rollouts]
    discarded: list[DiscardedRollout] = [d for group in groups for d in group.discarded]
    metrics = rollout_metrics(graded, discarded)
    rows = [group.rollouts for group in groups if group.rollouts]
    row_grades = [fmean(r.grade.value for r in row) for row in rows]
    held_out = [[r.grade.held_out for r in row if r.grade.held_out is not None] for row in rows]

    def count_passed(row: Sequence[Rollout]) -> int:
        return sum(r.grade.value >= pass_threshold for r in row)

    at_k = [pass_at_k(len(row), count_passed(row), samples) for row in rows]
    found = {
        "grade": bootstrap_interval(row_grades),
        "pass_rate": bootstrap_interval([count_passed(row) / len(row) for row in rows]),
        "pass_at_k": bootstrap_interval(at_k),
        "held_out": bootstrap_interval([fmean(grades) for grades in held_out if grades]),
    }

    def mean(name: str) -> float:
        return metrics.get(name, math.nan)

    return Evaluation(
        num_rows=len(groups),
        num_rollouts=len(graded),
        discarded=len(discarded),
        grade=found["grade"].mean,
        ci95=(found["grade"].high - found["grade"].low) / 2,
        reward=mean("train_mean_reward"),
        pass_rate=found["pass_rate"].mean,
        pass_at_k=found["pass_at_k"].mean,
        samples=samples,
        tool_calls=mean("tool_calls_mean"),
        turns=mean("turns_mean"),
        parallel_turn_share=mean("parallel_turn_share"),
        completion_tokens=mean("completion_tokens_mean"),
        rollout_tokens=mean("rollout_tokens_mean"),
        busy_s=mean("rollout_busy_s_mean"),
        reasoning_tokens=mean("reasoning_tokens_mean"),
        graded_rows=len(rows),
        held_out=found["held_out"].mean,
        intervals={name: (interval.low, interval.high) for name, interval in found.items() if interval.n},
    )
