"""Recommended settings and estimated steps and time of a training run, computed from the readiness samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from agent_rft.cluster.readiness.rollout_behavior import RolloutBehavior
from agent_rft.cluster.readiness.row_signal import GroupSignal
from agent_rft.spec.job import JobSpec
from agent_rft.spec.step_plan import GROUP_SIZE, StepPlan

HYPERPARAMETERS, REINFORCEMENT = "method.reinforcement.hyperparameters", "method.reinforcement"
TARGET_SIGNAL = 0.5
"""Share of groups with signal below which a larger group is recommended. Each doubling costs twice the sampling."""
MIN_SHARE_GAIN = 0.1
"""Minimum increase in the share of groups with signal that justifies a larger group."""
TARGET_GROUPS = 8
"""Groups with signal that a step needs. With fewer, the direction of a step changes from batch to batch."""
MAX_BATCH = 64
CUT_SHARE = 0.1
"""Share of rollouts cut off at the token limit above which a higher limit is recommended."""


@dataclass(frozen=True, slots=True)
class RecommendedSetting:
    """Recommended value of a job setting, with the reason."""

    setting: str
    value: float
    why: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated steps, rollouts and sampling time of a training run with the plan.

    `sampling_s` assumes the speed measured in the readiness check and excludes the learner's time. `useful_groups` is
    the number of groups with signal per step.
    """

    steps: int
    rollouts: int
    sampling_s: float | None
    useful_groups: float


def recommend_settings(
    job: JobSpec, plan: StepPlan, signal: Sequence[GroupSignal], behavior: RolloutBehavior
) -> Iterator[RecommendedSetting]:
    """Yield the settings that should change, judging by the readiness samples."""
    shares = {entry.size: entry.low for entry in signal}
    size = plan.group_size
    share = shares.get(size, 0.0)
    for entry in signal:
        if entry.size > size and share < TARGET_SIGNAL and entry.low >= share + MIN_SHARE_GAIN:
            why = f"{entry.low:.0%} of groups of {entry.size} have signal, but only {share:.0%} of groups of {size}"
            yield RecommendedSetting(f"{HYPERPARAMETERS}.compute_multiplier", entry.size / GROUP_SIZE, why)
            size, share = entry.size, entry.low
            break
    batch_size = min(MAX_BATCH, plan.num_rows, ceil(TARGET_GROUPS / share)) if share > 0 else plan.batch_size
    if batch_size > plan.batch_size:
        why = f"{share:.0%} of the groups have signal, and a step needs about {TARGET_GROUPS} groups with signal"
        yield RecommendedSetting(f"{HYPERPARAMETERS}.batch_size", batch_size, why)
    if behavior.ended.get("max_tokens", 0.0) > CUT_SHARE:
        limit = 2 * job.reinforcement.limits.max_completion_tokens
        why = f"{behavior.ended['max_tokens']:.0%} of the rollouts are cut off at this limit"
        yield RecommendedSetting(f"{REINFORCEMENT}.limits.max_completion_tokens", limit, why)


def estimate_training(plan: StepPlan, signal: Sequence[GroupSignal], rollout_s: float | None) -> Estimate:
    """Estimate the training run; `rollout_s` is explained in `judge_samples`."""
    rollouts = plan.steps * plan.rollouts_per_step
    share = next((entry.low for entry in signal if entry.size == plan.group_size), 0.0)
    return Estimate(plan.steps, rollouts, None if rollout_s is None else rollouts * rollout_s, plan.batch_size * share)
