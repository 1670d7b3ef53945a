"""Evaluation of one policy version on all rows of a file. Seeds are fixed; results have confidence intervals."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from agent_rft.errors import first_error
from agent_rft.loop_protocols import RolloutService
from agent_rft.metrics.confidence_intervals import GRADES, bootstrap_interval
from agent_rft.metrics.missing_rollouts import ValidationScore, mean_bounds
from agent_rft.metrics.pass_at_k import pass_at_k
from agent_rft.trainer.loop.rl_metrics import rollout_metrics
from agent_rft.types import DiscardedRollout, Evaluation, Group, GroupRequest, Purpose, Rollout, Task

MAX_CONCURRENT_GROUPS = 512
"""Maximum number of concurrent groups. It only bounds the engines' queues; engines limit their own concurrency."""
MAX_PROBE_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class OutageWait:
    """Limits for waiting until endpoints answer again.

    Attributes:
        max_s: Maximum seconds of the wait.
        first_probe_s: Seconds between the first and the second probe. The time then doubles after each probe, up to
            MAX_PROBE_WAIT_S.
    """

    max_s: float = 600.0
    first_probe_s: float = 2.0


async def evaluate(
    rollouts: RolloutService,
    tasks: Sequence[Task],
    purpose: Purpose,
    samples: int,
    temperature: float,
    pass_threshold: float,
    grade_range: tuple[float, float] = GRADES,
    outage_wait: OutageWait = OutageWait(),
) -> tuple[Evaluation, list[Group]]:
    """Sample and grade each task `samples` times; return the evaluation and the groups.

    Rollouts without a grade are repeated once. If an endpoint is down, the repetition waits until the endpoint answers
    again; after `outage_wait`, the evaluation ends without these rollouts.

    Seeds depend only on row, sample and repetition, not on epoch.
    """
    requests = [GroupRequest(task, 0, index, samples, purpose, temperature) for index, task in enumerate(tasks)]
    groups = await _sample_all(rollouts, requests)
    if any(group.missing_samples for group in groups):
        groups = await _repeat_missing(rollouts, groups, outage_wait)
    return summarize(groups, samples, pass_threshold, grade_range), groups


async def _sample_all(rollouts: RolloutService, requests: Sequence[GroupRequest]) -> list[Group]:
    slots = asyncio.Semaphore(MAX_CONCURRENT_GROUPS)

    async def sample(request: GroupRequest) -> Group:
        async with slots:
            return await rollouts.sample(request)

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(sample(request)) for request in requests]
    except ExceptionGroup as errors:
        raise first_error(errors) from errors
    return [task.result() for task in running]


async def _repeat_missing(rollouts: RolloutService, groups: Sequence[Group], outage_wait: OutageWait) -> list[Group]:
    """Repeat the missing rollouts of `groups` once, and return the groups with the repeated rollouts.

    If an endpoint is down, wait until endpoints answer again. If the wait exceeds `outage_wait`, the remaining rollouts
    are not repeated.
    """
    merged, repetitions = list(groups), Counter[int]()
    pending = deque(index for index, group in enumerate(groups) if group.missing_samples)

    def request_missing(index: int) -> GroupRequest:
        missing = merged[index].missing_samples
        repetitions[index] += 1
        return replace(groups[index].request, size=len(missing), samples=missing, attempt=repetitions[index])

    async def wait_for_endpoints() -> None:
        """Wait until no endpoint is down, or until a repeated rollout is graded.

        To probe the endpoints, the function repeats the missing rollouts of one group after another. A graded rollout
        shows that the endpoints answer again.
        """
        wait_s = outage_wait.first_probe_s
        while pending and await rollouts.has_outage():
            index = pending[0]
            probe = await rollouts.sample(request_missing(index))
            merged[index] = _merge(merged[index], probe)
            if not probe.missing_samples:
                pending.popleft()
            if probe.rollouts:
                return
            pending.rotate(-1)  # another row: this one may fail for a reason of its own
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, MAX_PROBE_WAIT_S)

    try:
        async with asyncio.timeout(outage_wait.max_s):
            await wait_for_endpoints()
    except TimeoutError:
        return merged
    repeated = await _sample_all(rollouts, [request_missing(index) for index in pending])
    for index, group in zip(pending, repeated, strict=True):
        merged[index] = _merge(merged[index], group)
    return merged


def _merge(group: Group, repeated: Group) -> Group:
    """Return `group` with its missing rollouts added from `repeated`."""
    return replace(
        group,
        rollouts=tuple(sorted((*group.rollouts, *repeated.rollouts), key=lambda rollout: rollout.sample)),
        discarded=(*group.discarded, *repeated.discarded),
        wall_s=group.wall_s + repeated.wall_s,
    )


def score_validation(groups: Sequence[Group], samples: int) -> ValidationScore:
    """Return the rewards of a validation by row, for comparisons with other validations."""
    rewards = {g.request.task.row_id: fmean(r.reward for r in g.rollouts) for g in groups if g.rollouts}
    return ValidationScore(rewards, len(groups), samples, sum(len(group.missing_samples) for group in groups))


def summarize(
    groups: Sequence[Group], samples: int, pass_threshold: float, grade_range: tuple[float, float] = GRADES
) -> Evaluation:
    """Compute the evaluation of graded groups; values are NaN if nothing was graded.

    `grade_range` is the lowest and the highest possible grade. `missing_bounds` of the result assumes these grades for
    missing rollouts.

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

    num_missing = max(0, len(groups) * samples - len(graded))
    passed = [float(r.grade.value >= pass_threshold) for r in graded]
    measured = {"grade": [r.grade.value for r in graded], "reward": [r.reward for r in graded], "pass_rate": passed}

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
        missing_bounds={
            name: mean_bounds(values, num_missing, GRADES if name == "pass_rate" else grade_range)
            for name, values in measured.items()
            if num_missing
        },
    )
