"""A grader with gates beside it: what a guard catches is worth what the guard says, whatever the grade. A guard that
fails is a failure, never a pass; a held-out grader that fails is only noted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from actors.graders.base import Grader, total_tokens
from trainer.errors import RftError
from trainer.spec.graders import GuardSpec
from trainer.types import Grade

UNGATED = "ungated"


class Guarded:
    """The grader of a job. It, its guards and the held-out one run side by side; of several guards that trip, the first
    one in the job counts.
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
        """The grade after the guards, each of which gave one of `checks`."""
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
    """The grade, or why there is none: nothing that is not trained on may cost a rollout."""
    try:
        return await grader.grade(sample, item, trace_id)
    except RftError as error:
        return error
