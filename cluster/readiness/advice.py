"""What to set and what to expect: settings that follow from the draws, steps and time as estimates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from agent_rft.cluster.readiness.behaviour import Behaviour
from agent_rft.cluster.readiness.draws import GroupSignal
from agent_rft.spec.job import JobSpec
from agent_rft.spec.plan import GROUP_SIZE, Plan

HYPERPARAMETERS, REINFORCEMENT = "method.reinforcement.hyperparameters", "method.reinforcement"
WANTED_SIGNAL = 0.5
"""Share of groups with signal for which a larger group is advised: each doubling costs twice the sampling."""
WORTH = 0.1
"""Least gain of that share for which a doubling is advised."""
WANTED_GROUPS = 8
"""Groups with signal in a step; with fewer the direction of a step changes from batch to batch."""
MAX_BATCH = 64
CUT_SHARE = 0.1
"""Share of rollouts that end for lack of tokens, above which the limit is to be raised."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the job to change, and why."""

    setting: str
    value: float
    why: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a training with the plan takes. `sampling_s` is at the speed measured here, without the learner's part.

    `useful_groups` are those with signal in one step.
    """

    steps: int
    rollouts: int
    sampling_s: float | None
    useful_groups: float


def settings_for(job: JobSpec, plan: Plan, signal: Sequence[GroupSignal], behaviour: Behaviour) -> Iterator[Setting]:
    """The settings that the draws speak for and the plan has not."""
    shares = {entry.size: entry.low for entry in signal}
    size = plan.group_size
    here = shares.get(size, 0.0)
    for entry in signal:
        if entry.size > size and here < WANTED_SIGNAL and entry.low >= here + WORTH:
            why = f"{entry.low:.0%} of the groups of {entry.size} have a signal, of {size} {here:.0%}"
            yield Setting(f"{HYPERPARAMETERS}.compute_multiplier", entry.size / GROUP_SIZE, why)
            size, here = entry.size, entry.low
            break
    wanted = min(MAX_BATCH, plan.num_rows, ceil(WANTED_GROUPS / here)) if here > 0 else plan.batch_size
    if wanted > plan.batch_size:
        why = f"{here:.0%} of the groups have a signal, and a step needs about {WANTED_GROUPS} of them"
        yield Setting(f"{HYPERPARAMETERS}.batch_size", wanted, why)
    if behaviour.ended.get("max_tokens", 0.0) > CUT_SHARE:
        limit = 2 * job.reinforcement.limits.max_completion_tokens
        why = f"{behaviour.ended['max_tokens']:.0%} of the rollouts end at the limit"
        yield Setting(f"{REINFORCEMENT}.limits.max_completion_tokens", limit, why)


def estimate_of(plan: Plan, signal: Sequence[GroupSignal], rollout_s: float | None) -> Estimate:
    """`rollout_s`: see `readiness_of`."""
    rollouts = plan.steps * plan.rollouts_per_step
    share = next((entry.low for entry in signal if entry.size == plan.group_size), 0.0)
    return Estimate(plan.steps, rollouts, None if rollout_s is None else rollouts * rollout_s, plan.batch_size * share)
