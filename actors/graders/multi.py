"""An expression over the grades of its parts, which run side by side. Without one of them there is no grade."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from actors.graders.base import Grader
from actors.graders.expression import parse
from trainer.grader_spec import MultiGrader
from trainer.types import Grade


class Multi:
    """A grader of kind `multi` over graders by name. `label` names it in messages."""

    def __init__(self, spec: MultiGrader, label: str, parts: Mapping[str, Grader]) -> None:
        self._where = f"grader {label!r}, calculate_output"
        self._parts = dict(parts)
        self._expression = parse(spec.calculate_output, self._parts)

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {
                    name: group.create_task(part.grade(sample, item, trace_id)) for name, part in self._parts.items()
                }
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        grades = {name: task.result() for name, task in tasks.items()}
        scores = {name: grade.value for name, grade in grades.items()}
        latency_s = max(grade.latency_s for grade in grades.values())
        return Grade(self._expression.value(scores, self._where), scores=scores, latency_s=latency_s)

    async def close(self) -> None:
        for part in self._parts.values():
            await part.close()
