"""Grade -> reward: a right answer is worth less the more calls, tokens and seconds it took, but never nothing."""

from __future__ import annotations

from trainer.spec.job import RewardSpec
from trainer.types import Grade

KEPT_SHARE = 0.1
"""Of a positive grade, this share is out of reach of penalties."""


def reward_of(spec: RewardSpec, grade: Grade, num_calls: int, num_sampled: int, busy_s: float) -> float:
    """The reward of one rollout. Where a guard tripped it is what the guard says, as it is; else, of the grade's value:

        penalties = tool_call_penalty x max(0, num_calls - tool_call_budget)
                  + token_penalty x num_sampled + time_penalty_per_s x busy_s
        reward = grade                                           where grade <= 0
                 max(grade - penalties, KEPT_SHARE x grade)      where grade > 0

    `num_sampled` are the tokens that the model generated, `busy_s` the seconds of model and tool time.

    Giving up early must never pay. So a grade of 0 or less takes no penalty (else a quick wrong answer would beat a
    long wrong one, and the model would learn to stop trying), and the floor keeps every positive grade above every
    wrong answer, however much was spent on it: with a floor of 0, a right answer after many calls would be worth
    as little as none. The reward rises strictly with the grade at equal cost.
    """
    value = grade.value
    if grade.guard is not None or value <= 0:
        return value
    penalties = (
        spec.tool_call_penalty * max(0, num_calls - spec.tool_call_budget)
        + spec.token_penalty * num_sampled
        + spec.time_penalty_per_s * busy_s
    )
    return max(value - penalties, KEPT_SHARE * value)
