"""A placeholder until the sandboxed grader takes this file's place: its interface, and no way to run anything."""

from __future__ import annotations

from typing import Any

from trainer.errors import GraderFailed
from trainer.grader_spec import PythonGrader
from trainer.operator import Operator
from trainer.types import Grade


class PythonGrade:
    """A grader of kind `python`."""

    def __init__(self, spec: PythonGrader, label: str, operator: Operator) -> None:
        self._what = f"grader {label!r}"

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        raise GraderFailed(f"{self._what}: there is no sandbox in this build", code="python_grader_server_error")

    async def close(self) -> None:
        """It holds nothing."""


def python_source_problems(source: str) -> list[str]:
    """What is wrong with a source, as far as it shows without running it."""
    return []
