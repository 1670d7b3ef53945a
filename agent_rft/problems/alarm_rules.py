"""Alarm rules for reward hacking: the meaning of each rule and what to do about it."""

from __future__ import annotations

from typing import Literal

from agent_rft.problems.problem_code import ProblemCode

AlarmRule = Literal["early_top_grade", "drift", "diverged"]

ALARM_RULES: dict[AlarmRule, ProblemCode] = {
    "early_top_grade": ProblemCode(
        "The mean grade is nearly 1 within the first steps, although it was far from 1 at the start. Such a fast rise "
        "is more often caused by a loophole in the grader than by learning the task.",
        "Read the answers (`agent-rft traces RUN --best 5`). If they are good, continue: the rows are easy. If not, "
        "close the loophole in the grader or add a guard, and restart from the model that this run started from.",
    ),
    "drift": ProblemCode(
        "Answers became four times longer or shorter than at the start, or tools are called four times more or less "
        "often. The grader may reward length, or answers that skip the work.",
        "Compare a rollout that the event lists with a rollout of the first step (`agent-rft traces RUN --step 1`). "
        "If answers are too long or there are too many calls, set `reward.token_penalty` or "
        "`reward.tool_call_penalty`. If the model skips the work, add a guard; guards see the calls as well as the "
        "answer.",
    ),
    "diverged": ProblemCode(
        "A part of the grade, or the held-out grade, fell while the mean grade rose. The model may be learning a "
        "loophole of its grader instead of the intended task. Some parts of a grade count errors: in the first steps, "
        "these parts were high for rollouts with low grades. For such a part, the alarm is raised if the score rises.",
        "Read the rollouts that the event lists, which have the best rewards. If their answers are not what you want, "
        "fix the grader or add a guard, and resume from a checkpoint that was saved before the change.",
    ),
}
