"""The rules of the alarms for reward hacking: what each means and what to do about it."""

from __future__ import annotations

from typing import Literal

from agent_rft.problems.code import ProblemCode

AlarmRule = Literal["top_grade_soon", "drift", "diverged"]

ALARM_RULES: dict[AlarmRule, ProblemCode] = {
    "top_grade_soon": ProblemCode(
        "The mean grade is nearly 1 within the first steps, although it was far from it at the start. Holes in "
        "graders are found so fast more often than tasks are learned so fast.",
        "Read the answers (`agent-rft traces RUN --best 5`). If they are good, go on: the rows are easy. If not, close "
        "the hole in the grader or add a guard, and start from the model that this run started from.",
    ),
    "drift": ProblemCode(
        "Answers became four times longer or shorter, or tools are called four times as often or seldom as at the "
        "start. Graders may pay for length, or for answers that skip the work.",
        "Compare a rollout of the event with one of the first step (`agent-rft traces RUN --step 1`). What is longer "
        "than it should be gets a price: `reward.token_penalty` or `reward.tool_call_penalty`. What skips the work "
        "gets a guard, which sees the calls, too.",
    ),
    "diverged": ProblemCode(
        "A part of the grade, or the held-out grade, fell while the mean grade rose. Of a part that counts mistakes, "
        "which is one that was high where the grade was low in the first steps, it is the rise that counts. The "
        "policy may learn what its grader rewards and not what it is for.",
        "Read the rollouts of the event, which have the best rewards. If they are not what you want, repair the grader "
        "or add a guard, and resume from a checkpoint before the metric fell.",
    ),
}
