"""Rewards: grades minus penalties for calls, turns, tokens and time. A positive grade never drops to 0."""

from __future__ import annotations

from agent_rft.spec.job import RewardSpec
from agent_rft.types import Grade

KEPT_SHARE = 0.1
"""Share of a positive grade that penalties cannot remove."""


def compute_reward(
    spec: RewardSpec, grade: Grade, num_calls: int, num_turns: int, num_sampled: int, busy_s: float
) -> float:
    """Return the reward of one rollout: the guard's value if a guard was triggered, else the grade minus penalties.

        penalties = tool_call_penalty x max(0, num_calls - tool_call_budget) + turn_penalty x max(0, num_turns - 1)
                  + token_penalty x num_sampled + time_penalty_per_s x busy_s
        reward = grade                                           if grade <= 0
                 max(grade - penalties, KEPT_SHARE x grade)      if grade > 0

    `num_sampled` is the number of generated tokens; `busy_s` is the model and tool time in seconds.

    Giving up early must never pay. Penalties are therefore not subtracted from a grade of 0 or less: otherwise a quick
    wrong answer would beat a long wrong answer, and the model would learn to stop trying. The minimum KEPT_SHARE x
    grade keeps the reward of every correct answer above the reward of every wrong answer, however large the penalties
    are. With a minimum of 0, a correct answer after many calls would be worth no more than a wrong answer. With equal
    penalties, a higher grade always gives a higher reward.
    """
    value = grade.value
    if grade.guard is not None or value <= 0:
        return value
    penalties = (
        spec.tool_call_penalty * max(0, num_calls - spec.tool_call_budget)
        + spec.turn_penalty * max(0, num_turns - 1)
        + spec.token_penalty * num_sampled
        + spec.time_penalty_per_s * busy_s
    )
    return max(value - penalties, KEPT_SHARE * value)
