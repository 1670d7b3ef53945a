"""Tools in the rows of a project, and rules that apply to the tools of all sources."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_rft.errors import InvalidJob, Problem, UserError

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Pattern of tool names that OpenAI's API and the parsers of model families accept."""
NAME_RULE = "a tool's name must have 1 to 64 characters: letters a-z or A-Z, digits, _ or -"
MAX_TOOLS = 64
"""Maximum number of tools. Every prompt describes all tools, so more tools are rarely intended."""
MAX_DESCRIPTION_CHARS = 2_000
MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class ProjectTool:
    """Tool that the model can call.

    `parameters` is the JSON schema of the arguments, without references. `may_change_data` is true if calls may change
    data.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    may_change_data: bool = False

    def to_chat_tool(self) -> dict[str, Any]:
        """Return the tool in chat format, for the key `tools` of a row."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


def select_tools(names: Sequence[str], requested: Sequence[str], what: str, where: str) -> list[str]:
    """Return the requested names; if `requested` is empty, return all `names`.

    For error messages, `what` is the kind of tool, such as function, and `where` is the source of the tools.

    Raises:
        UserError: A requested name does not exist, or there are too many names.
    """
    if missing := [name for name in requested if name not in names]:
        available = ", ".join(names[:MAX_PROBLEMS]) or "none"
        raise UserError(f"--tool {missing[0]}: {where} has no such {what}; available: {available}")
    found = [name for name in names if not requested or name in requested]
    if len(found) > MAX_TOOLS:
        raise UserError(
            f"{where} has {len(found)} {what}s, and every prompt would describe all of them; select at most "
            f"{MAX_TOOLS}, each with --tool, such as --tool {found[0]}"
        )
    return found


def raise_problems(message: str, problems: Sequence[Problem]) -> None:
    """Raise an error with the first MAX_PROBLEMS problems, if any; `message` is the start of the error's message.

    Raises:
        InvalidJob: There are problems.
    """
    if problems:
        num_hidden = len(problems) - MAX_PROBLEMS
        suffix = f" ({num_hidden} more are not shown)" if num_hidden > 0 else ""
        raise InvalidJob(message + suffix, list(problems[:MAX_PROBLEMS]))


def trim_description(text: str) -> str:
    """Return a description for the model, without surrounding white space and cut to MAX_DESCRIPTION_CHARS."""
    return text.strip()[:MAX_DESCRIPTION_CHARS]
