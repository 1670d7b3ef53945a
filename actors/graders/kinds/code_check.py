"""Grader of kind `code_check`: code that looks like the hack in the spec gets 0 and a reason, other code gets 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_rft.actors.graders.grader_protocol import StringWorker
from agent_rft.actors.graders.grader_templates import render
from agent_rft.actors.graders.hacks.code_hacks import (
    detect_hard_coded_result,
    detect_returned_reference,
    detect_trivial_output,
)
from agent_rft.actors.graders.hacks.edited_tests import detect_edited_tests, parse_file_patterns
from agent_rft.actors.graders.hacks.python_source import CodeTooLarge, PythonSource, parse_source
from agent_rft.errors import GraderFailed
from agent_rft.spec.graders import CodeCheckGrader
from agent_rft.types import Grade

CHECKS: dict[str, Callable[[PythonSource, PythonSource], str | None]] = {
    "reference_returned": detect_returned_reference,
    "trivial_output": detect_trivial_output,
    "result_hard_coded": detect_hard_coded_result,
}
"""Checks by name. Each check gets the code and the reference, which is also code.

`detect_edited_tests` is not included, because its reference is a list of file patterns."""


class CodeCheck:
    """A grader of kind `code_check`. `label` names the grader in messages."""

    def __init__(self, spec: CodeCheckGrader, label: str) -> None:
        self._spec = spec
        self._what = f"grader {label!r}"
        self._work = StringWorker()

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        code = render(self._spec.code, f"{self._what}, code", item=item, sample=sample)
        reference = render(self._spec.reference, f"{self._what}, reference", item=item, sample=sample)
        try:
            reason = await self._work.run(
                lambda: find_hack(self._spec.check, code, reference), len(code) + len(reference)
            )
        except CodeTooLarge as bound:
            raise GraderFailed(f"{self._what}: the reference cannot be parsed, because {bound}") from None
        return Grade(1.0) if reason is None else Grade(0.0, reason=reason)

    async def close(self) -> None:
        self._work.close()


def find_hack(check: str, code: str, reference: str) -> str | None:
    """Return why `code` looks like the hack that `check` detects; None if it does not.

    Code that is too large or too deeply nested to check counts as a hack; otherwise such code would always pass.

    Raises:
        CodeTooLarge: The reference is too large or too deeply nested.
    """
    known = parse_source(reference) if check in CHECKS else None
    patterns = parse_file_patterns(reference) if known is None else ()
    try:
        return detect_edited_tests(code, patterns) if known is None else CHECKS[check](parse_source(code), known)
    except CodeTooLarge as bound:
        return f"the code cannot be checked, because {bound}"
    except (RecursionError, MemoryError):
        return "the code cannot be checked, because it is nested too deeply"
    except ValueError as error:  # a number with more digits than Python can print
        return f"the code cannot be checked: {error}"
