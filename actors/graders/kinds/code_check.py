"""Grader of kind `code_check`: 0, with a reason, if the code looks like the hack that the spec names, else 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_rft.actors.graders.base import TextWork
from agent_rft.actors.graders.hacks.code_hacks import reference_returned, result_hard_coded, trivial_output
from agent_rft.actors.graders.hacks.edited_tests import patterns_of, tests_edited
from agent_rft.actors.graders.hacks.python_source import PythonSource, TooMuch, source_of
from agent_rft.actors.graders.templates import render
from agent_rft.errors import GraderFailed
from agent_rft.spec.graders import CodeCheckGrader
from agent_rft.types import Grade

CHECKS: dict[str, Callable[[PythonSource, PythonSource], str | None]] = {
    "reference_returned": reference_returned,
    "trivial_output": trivial_output,
    "result_hard_coded": result_hard_coded,
}
"""Checks whose reference is code. The reference of `tests_edited` is a list of files."""


class CodeCheck:
    """A grader of kind `code_check`. `label` names it in messages."""

    def __init__(self, spec: CodeCheckGrader, label: str) -> None:
        self._spec = spec
        self._what = f"grader {label!r}"
        self._work = TextWork()

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        code = render(self._spec.code, f"{self._what}, code", item=item, sample=sample)
        reference = render(self._spec.reference, f"{self._what}, reference", item=item, sample=sample)
        try:
            reason = await self._work.run(
                lambda: hack_in(self._spec.check, code, reference), len(code) + len(reference)
            )
        except TooMuch as bound:
            raise GraderFailed(f"{self._what}: the reference cannot be parsed, because {bound}") from None
        return Grade(1.0) if reason is None else Grade(0.0, reason=reason)

    async def close(self) -> None:
        self._work.close()


def hack_in(check: str, code: str, reference: str) -> str | None:
    """Return why `code` looks like the hack; None if it does not.

    Code that is too large or too deeply nested to check counts as the hack; otherwise such code would always pass.

    Raises:
        TooMuch: The reference is too large or too deeply nested.
    """
    known = source_of(reference) if check in CHECKS else None
    patterns = patterns_of(reference) if known is None else ()
    try:
        return tests_edited(code, patterns) if known is None else CHECKS[check](source_of(code), known)
    except TooMuch as bound:
        return f"the code cannot be checked, because {bound}"
    except (RecursionError, MemoryError):
        return "the code cannot be checked, because it is nested too deeply"
    except ValueError as error:  # a number with more digits than Python can print
        return f"the code cannot be checked: {error}"
