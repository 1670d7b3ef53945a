"""Grade -> reward: a right answer is worth less the more calls, tokens and seconds it took, but never nothing."""

from __future__ import annotations

from trainer.spec import RewardSpec

KEPT_SHARE = 0.1
"""Of a positive grade, this share is out of reach of penalties."""


def reward_of(spec: RewardSpec, grade: float, num_calls: int, num_sampled: int, busy_s: float) -> float:
    """The reward of one rollout.

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
    if grade <= 0:
        return grade
    penalties = (
        spec.tool_call_penalty * max(0, num_calls - spec.tool_call_budget)
        + spec.token_penalty * num_sampled
        + spec.time_penalty_per_s * busy_s
    )
    return max(grade - penalties, KEPT_SHARE * grade)
