"""Check that a job does not need tool calls if no parser can read its model's calls.

Without a parser, each turn of the model is treated as an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent_rft.actors.engine.chat.dialect_detection import without_tools_renderer
from agent_rft.cluster.checks.model_checks.dialect_check import OWN_TEMPLATE
from agent_rft.cluster.checks.model_checks.model_check import LoadableModel
from agent_rft.cluster.checks.row_checks import CheckedRow
from agent_rft.errors import Problem
from agent_rft.spec.job import JobSpec


def check_calls_in_rows(
    model: LoadableModel, job: JobSpec, rows: Sequence[CheckedRow]
) -> tuple[LoadableModel, list[Problem]]:
    """If no parser can read the model's tool calls, check that the job does not need tool calls.

    Returns:
        The model, and the problems. If no parser can read tool calls and there are no problems, the returned model
        treats each turn as an answer.
    """
    if (unread := model.unread_calls_problem) is None:
        return model, []
    if job.method.reinforcement is not None and job.reinforcement.tools:
        return model, [unread]
    needed = [(row, part, name) for row in rows for part, name in _find_calls(row)]
    if needed:
        fix = f"{OWN_TEMPLATE}; or remove the tools and calls from the row"
        return model, [
            row.problem(unread.code, part, f"the row has {name}, but {unread.message}", fix)
            for row, part, name in needed
        ]
    renderer = without_tools_renderer(model.renderer)
    assert renderer is not None  # else the calls would be a problem of the model
    return replace(model, renderer=renderer), []


def tools_warning(model: LoadableModel) -> str | None:
    """Return a warning if the model works only without tools, else None.

    The warning is for jobs that need no tool calls. For other jobs, `check_calls_in_rows` returns problems.
    """
    if model.unread_calls_problem is None or model.renderer.dialect.tool_parser is not None:
        return None
    return (
        f"model: works only without tools, because {model.unread_calls_problem.message}. Before you add tools, "
        f"{OWN_TEMPLATE} [tools_unsupported]"
    )


def _find_calls(row: CheckedRow) -> list[tuple[str, str]]:
    """Return [(path, description)] of the first use of tools in the row, or an empty list."""
    if row.task.tools:
        return [(".tools", "tools")]
    for i, message in enumerate(row.task.messages):
        if message.get("tool_calls"):
            return [(f".messages[{i}].tool_calls", "a tool call")]
        if message["role"] == "tool":
            return [(f".messages[{i}]", "a tool result")]
    return []
