"""Grader of kind `string_check`: 1 if the comparison of two rendered templates is true, else 0."""

from __future__ import annotations

from typing import Any, assert_never

from agent_rft.actors.graders.grader_templates import render
from agent_rft.spec.graders import StringCheckGrader
from agent_rft.types import Grade


class StringCheck:
    """A grader of kind `string_check`. `label` names the grader in messages."""

    def __init__(self, spec: StringCheckGrader, label: str) -> None:
        self._spec = spec
        self._what = f"grader {label!r}"

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        text = render(self._spec.input, f"{self._what}, input", item=item, sample=sample)
        reference = render(self._spec.reference, f"{self._what}, reference", item=item, sample=sample)
        match self._spec.operation:
            case "eq":
                holds = text == reference
            case "ne":
                holds = text != reference
            case "like":
                holds = reference in text
            case "ilike":
                holds = reference.casefold() in text.casefold()
            case _:
                assert_never(self._spec.operation)
        return Grade(float(holds))

    async def close(self) -> None:
        """Do nothing: this grader has no resources."""
