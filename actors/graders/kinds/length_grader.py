"""Grader of kind `length`, a guard against padding: 1 if a rendered template has at most `max_chars`, else 0."""

from __future__ import annotations

from typing import Any

from agent_rft.actors.graders.grader_templates import render
from agent_rft.spec.graders import LengthGrader
from agent_rft.types import Grade


class LengthCheck:
    """A grader of kind `length`. `label` names the grader in messages."""

    def __init__(self, spec: LengthGrader, label: str) -> None:
        self._spec = spec
        self._what = f"grader {label!r}"

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        length = len(render(self._spec.input, f"{self._what}, input", item=item, sample=sample))
        if length <= self._spec.max_chars:
            return Grade(1.0)
        return Grade(0.0, reason=f"{length:,} characters exceed the limit of {self._spec.max_chars:,}")

    async def close(self) -> None:
        """Do nothing: this grader has no resources."""
