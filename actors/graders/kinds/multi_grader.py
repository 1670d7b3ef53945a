"""Grader of kind `multi`, which combines the grades of its parts with an expression.

The multi grader fails if a part fails. If a part cannot read the sample and the spec sets `invalid_grade`, the result
is `invalid_grade` instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from agent_rft.actors.graders.grader_protocol import Grader, sum_judge_tokens, truncate_reason
from agent_rft.actors.graders.grader_templates import INVALID_VARIABLE
from agent_rft.actors.graders.kinds.grade_expression import parse_expression
from agent_rft.actors.graders.kinds.python_grader import PYTHON_RUNTIME_ERROR
from agent_rft.errors import GraderFailed
from agent_rft.spec.graders import MultiGrader
from agent_rft.types import Grade

SAMPLE_PARSE_ERROR = "sample_parse_error"


class Multi:
    """A grader of kind `multi`, which combines the grades of named graders. `label` names the grader in messages."""

    def __init__(self, spec: MultiGrader, label: str, parts: Mapping[str, Grader]) -> None:
        self._where = f"grader {label!r}, calculate_output"
        self._parts = dict(parts)
        self._invalid_grade = spec.invalid_grade
        self._expression = parse_expression(spec.calculate_output, self._parts)

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        tasks: dict[str, asyncio.Task[Grade]] = {}
        try:
            async with asyncio.TaskGroup() as group:
                for name, part in self._parts.items():
                    tasks[name] = group.create_task(part.grade(sample, item, trace_id))
        except ExceptionGroup as failed:
            unreadable = next((error for error in failed.exceptions if cannot_read_sample(error)), None)
            if unreadable is None or self._invalid_grade is None:
                raise (unreadable or failed.exceptions[0]) from None
            return Grade(self._invalid_grade, reason=f"invalid_grade: {unreadable}")
        grades = {name: task.result() for name, task in tasks.items()}
        scores = {name: grade.value for name, grade in grades.items()}
        return Grade(
            self._expression.compute_value(scores, self._where),
            scores=scores | {f"{name}.{part}": s for name, grade in grades.items() for part, s in grade.scores.items()},
            latency_s=max(grade.latency_s for grade in grades.values()),
            reason=truncate_reason(
                "; ".join(f"{name}: {grade.reason}" for name, grade in grades.items() if grade.reason)
            ),
            judge_tokens=sum_judge_tokens(grades.values()),
            train=all(grade.train for grade in grades.values()),
        )

    async def close(self) -> None:
        for part in self._parts.values():
            await part.close()


def cannot_read_sample(error: Exception) -> bool:
    """Return whether a grader failed because it cannot read the model's output.

    Returns False for errors in the row or the infrastructure.
    """
    if not isinstance(error, GraderFailed):
        return False
    code, path = error.details.get("code"), str(error.details.get("path"))
    is_path_error = code in (INVALID_VARIABLE, PYTHON_RUNTIME_ERROR) and path.startswith("sample")
    return code == SAMPLE_PARSE_ERROR or is_path_error
