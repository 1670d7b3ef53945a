"""A grader with guards: a sample that a guard rejects gets the guard's reward, whatever its grade.

A guard that raises an error fails the grade and never passes it; an error of the held-out grader is only recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent_rft.actors.graders.base import UNGATED, Grader, total_tokens
from agent_rft.errors import RftError
from agent_rft.spec.graders import GuardSpec
from agent_rft.types import Grade


class Guarded:
    """The grader of a job, with its guards and its held-out grader, which all run concurrently.

    If several guards reject a sample, the first one in the job counts.
    """

    def __init__(self, grader: Grader, guards: Sequence[tuple[GuardSpec, Grader]], held_out: Grader | None) -> None:
        self._grader = grader
        self._guards = guards
        self._held_out = held_out

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        held_out: asyncio.Task[Grade | RftError] | None = None
        try:
            async with asyncio.TaskGroup() as group:
                main = group.create_task(self._grader.grade(sample, item, trace_id))
                guards = [group.create_task(guard.grade(sample, item, trace_id)) for _, guard in self._guards]
                if self._held_out is not None:
                    held_out = group.create_task(_noted(self._held_out, sample, item, trace_id))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        grade, checks = main.result(), [task.result() for task in guards]
        grade = self._gated(grade, checks) if checks else grade
        if held_out is None:
            return grade
        outcome = held_out.result()
        if isinstance(outcome, RftError):
            return replace(grade, held_out_error=outcome.message)
        return replace(grade, held_out=outcome.value, judge_tokens=total_tokens([grade, outcome]))

    async def close(self) -> None:
        for grader in (self._grader, *(guard for _, guard in self._guards), self._held_out):
            if grader is not None:
                await grader.close()

    def _gated(self, grade: Grade, checks: Sequence[Grade]) -> Grade:
        """The grade after the guards; `checks` has each guard's own grade."""
        gated = replace(
            grade,
            scores=grade.scores | {UNGATED: grade.value},
            latency_s=max(grade.latency_s, *(check.latency_s for check in checks)),
            judge_tokens=total_tokens([grade, *checks]),
        )
        for (spec, _), check in zip(self._guards, checks, strict=True):
            if check.value < spec.grader.pass_threshold:
                reason = f"{spec.name} gave {check.value:g}, below its pass_threshold {spec.grader.pass_threshold:g}"
                reason += f": {check.reason}" if check.reason else ""
                return replace(gated, value=spec.reward, guard=spec.name, reason=reason)
        return gated


async def _noted(grader: Grader, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade | RftError:
    """The grade, or the error as a value: the held-out grader is not trained on, so its failure costs no rollout."""
    try:
        return await grader.grade(sample, item, trace_id)
    except RftError as error:
        return error
