"""Deadlines of the stages of a job's rollouts, by which the watchdog tells a long call from a stall."""

from __future__ import annotations

from actors.grading.factory import GRACE_S, grade_deadline_s, graders_of
from trainer.spec.job import Reinforcement
from trainer.spec.operator.config import Operator


def stage_deadlines_s(reinforcement: Reinforcement, operator: Operator) -> dict[str, float]:
    """Return the seconds after which the calls of a stage have ended, answered or not; sampling has no deadline.

    Calls of one turn, and the graders of one rollout, run concurrently.
    """
    session = reinforcement.session
    return {
        "session start": 0.0 if session is None else session.timeout_s + GRACE_S,
        "tool calls": max((tool.timeout_s + GRACE_S for tool in reinforcement.tools), default=0.0),
        "grading": max(grade_deadline_s(grader, operator) for _, grader in graders_of(reinforcement)),
    }
