"""Recommended settings of a training run, and estimates of its steps and time, from the readiness check's samples."""

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
"""Minimum share of groups with different rewards. Below it, larger groups are recommended."""
MIN_SHARE_GAIN = 0.1
"""Minimum increase in the share of groups with different rewards.

If the increase is smaller, larger groups are not recommended.
"""
TARGET_GROUPS = 8
"""Minimum number of useful groups per step. With fewer useful groups, updates vary too much between batches.

A group is useful if the rewards of its rollouts differ.
"""
MAX_BATCH = 64
CUT_SHARE = 0.1
"""Maximum acceptable share of rollouts that are cut off at the token limit."""


@dataclass(frozen=True, slots=True)
class RecommendedSetting:
    """Recommended value of a job setting, with the reason."""

    setting: str
    value: float
    why: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated steps, rollouts and sampling time of a training run.

    `sampling_s` assumes the speed that the readiness check measured, and excludes the learner's time. `useful_groups`
    is the number of groups per step whose rewards differ.
    """

    steps: int
    rollouts: int
    sampling_s: float | None
    useful_groups: float


def recommend_settings(
    job: JobSpec, plan: StepPlan, signal: Sequence[GroupSignal], behavior: RolloutBehavior
) -> Iterator[RecommendedSetting]:
    """Yield a recommended value for each setting that should change, based on the readiness samples."""
    shares = {entry.size: entry.low for entry in signal}
    size = plan.group_size
    share = shares.get(size, 0.0)
    for entry in signal:
        if entry.size > size and share < TARGET_SIGNAL and entry.low >= share + MIN_SHARE_GAIN:
            larger = f"in {entry.low:.0%} of the groups with {entry.size} rollouts"
            why = f"rewards differ {larger}, but only in {share:.0%} of the groups with {size} rollouts"
            yield RecommendedSetting(f"{HYPERPARAMETERS}.compute_multiplier", entry.size / GROUP_SIZE, why)
            size, share = entry.size, entry.low
            break
    batch_size = min(MAX_BATCH, plan.num_rows, ceil(TARGET_GROUPS / share)) if share > 0 else plan.batch_size
    if batch_size > plan.batch_size:
        why = f"a step needs about {TARGET_GROUPS} groups whose rewards differ, but rewards differ in only {share:.0%} "
        why += "of the groups"
        yield RecommendedSetting(f"{HYPERPARAMETERS}.batch_size", batch_size, why)
    if behavior.ended.get("max_tokens", 0.0) > CUT_SHARE:
        limit = 2 * job.reinforcement.limits.max_completion_tokens
        why = f"{behavior.ended['max_tokens']:.0%} of the rollouts are cut off at this limit"
        yield RecommendedSetting(f"{REINFORCEMENT}.limits.max_completion_tokens", limit, why)


def estimate_training(plan: StepPlan, signal: Sequence[GroupSignal], rollout_s: float | None) -> Estimate:
    """Estimate the training run. `rollout_s` is the measured time per rollout in seconds; None if unknown."""
    rollouts = plan.steps * plan.rollouts_per_step
    share = next((entry.low for entry in signal if entry.size == plan.group_size), 0.0)
    return Estimate(plan.steps, rollouts, None if rollout_s is None else rollouts * rollout_s, plan.batch_size * share)
