"""A tool as the rows of a project offer it, and what every source of tools must keep to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_rft.errors import InvalidJob, Problem, UserError

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names that OpenAI's API and the parsers of models accept."""
NAME_RULE = "a tool's name has 1 to 64 letters a-z, digits, _ or -"
MAX_TOOLS = 64
"""Each tool is in every prompt, so more are rarely meant."""
MAX_DESCRIPTION_CHARS = 2_000
MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Tool:
    """A function for the model; `parameters` is a JSON schema without references. `changes`: a call may change data."""

    name: str
    description: str
    parameters: dict[str, Any]
    changes: bool = False

    def chat_form(self) -> dict[str, Any]:
        """The tool's entry in `tools` of a row."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


def chosen(names: Sequence[str], wanted: Sequence[str], what: str, where: str) -> list[str]:
    """Those of `names` that are wanted, in their order; all if none is named. `what` names them in messages.

    Raises:
        UserError: There is nothing to choose, one of the wanted is not there, or there are too many.
    """
    if missing := [name for name in wanted if name not in names]:
        there = ", ".join(names[:MAX_PROBLEMS]) or "none"
        raise UserError(f"--tool {missing[0]}: {where} has no such {what}; it has: {there}")
    found = [name for name in names if not wanted or name in wanted]
    if len(found) > MAX_TOOLS:
        raise UserError(
            f"{where} has {len(found)} {what}s, and every prompt would describe them all; name at most {MAX_TOOLS}, "
            f"each with --tool, such as --tool {found[0]}"
        )
    return found


def refuse(what: str, problems: Sequence[Problem]) -> None:
    """Report what was found, at most MAX_PROBLEMS of it.

    Raises:
        InvalidJob: There are problems.
    """
    if problems:
        more = len(problems) - MAX_PROBLEMS
        unshown = f" ({more} more are not shown)" if more > 0 else ""
        raise InvalidJob(what + unshown, list(problems[:MAX_PROBLEMS]))


def described(text: str) -> str:
    """A description for the model, within bounds."""
    return text.strip()[:MAX_DESCRIPTION_CHARS]
