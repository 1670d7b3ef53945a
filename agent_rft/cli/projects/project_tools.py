"""Tools in the rows of a project, and the rules for all sources of tools."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_rft.errors import InvalidJob, Problem, UserError

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names that OpenAI's API and the parsers of model families accept."""
NAME_RULE = "a tool's name has 1 to 64 letters a-z, digits, _ or -"
MAX_TOOLS = 64
"""Maximum number of tools. Every prompt describes all tools, so more are rarely intended."""
MAX_DESCRIPTION_CHARS = 2_000
MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class ProjectTool:
    """Function for the model. `parameters` is a JSON schema without references; `changes`: a call may change data."""

    name: str
    description: str
    parameters: dict[str, Any]
    changes: bool = False

    def to_chat_tool(self) -> dict[str, Any]:
        """Return the tool's entry in `tools` of a row."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


def select_tools(names: Sequence[str], requested: Sequence[str], what: str, where: str) -> list[str]:
    """Return the names that are in `requested`, in their order, or all names if `requested` is empty.

    `what` is the kind of tool in messages, and `where` their source.

    Raises:
        UserError: A requested name does not exist, or there are too many names.
    """
    if missing := [name for name in requested if name not in names]:
        available = ", ".join(names[:MAX_PROBLEMS]) or "none"
        raise UserError(f"--tool {missing[0]}: {where} has no such {what}; it has: {available}")
    found = [name for name in names if not requested or name in requested]
    if len(found) > MAX_TOOLS:
        raise UserError(
            f"{where} has {len(found)} {what}s, and every prompt would describe all of them; select at most "
            f"{MAX_TOOLS}, each with --tool, such as --tool {found[0]}"
        )
    return found


def raise_problems(what: str, problems: Sequence[Problem]) -> None:
    """Raise an error if there are problems, with the first MAX_PROBLEMS of them.

    Raises:
        InvalidJob: There are problems.
    """
    if problems:
        num_hidden = len(problems) - MAX_PROBLEMS
        suffix = f" ({num_hidden} more are not shown)" if num_hidden > 0 else ""
        raise InvalidJob(what + suffix, list(problems[:MAX_PROBLEMS]))


def trim_description(text: str) -> str:
    """Return a description for the model, cut to MAX_DESCRIPTION_CHARS."""
    return text.strip()[:MAX_DESCRIPTION_CHARS]
