"""Checks of the rows of a job's files against its tools, its graders and the context length."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rft.actors.endpoints.request_body import MAX_REQUEST_BYTES, MAX_ROW_BYTES, encode_json
from agent_rft.actors.graders.grader_templates import INVALID_VARIABLE, TOO_LONG, render
from agent_rft.actors.grading.grader_factory import iterate_graders, iterate_templates
from agent_rft.chat.conversation import UnsplittableConversation, split_conversation
from agent_rft.chat.renderer import Renderer
from agent_rft.chat.template import RenderFailed
from agent_rft.cluster.checks.endpoint_checks import TOOLS
from agent_rft.cluster.checks.model_checks.dialect_check import TOOLS_FIX
from agent_rft.cluster.checks.schema_examples import make_example_sample
from agent_rft.errors import GraderFailed, Problem
from agent_rft.rows.dataset_rows import read_tasks
from agent_rft.rows.supervised_findings import find_supervised_findings
from agent_rft.spec.graders import EndpointGrader
from agent_rft.spec.job import FILES, JobSpec, Reinforcement
from agent_rft.spec.schemas.json_schema import find_schema_problem
from agent_rft.spec.schemas.schema_limits import SchemaProblem
from agent_rft.types import Task

MIN_ANSWER_TOKENS = 16
"""Minimum number of tokens that a prompt must leave for the answer."""
SHOWN_CHARS = 40
"""Number of characters to search for in the prompt, from the start of each system or user message."""
SIZE_FIX = "shorten the row: move large values to a file that tools and graders read, and put an id in the row"
COMPARE_FIX = "compare the messages and tools of the row with those of a row that has no problem"
ROWS_AT_ONCE = 200
"""Number of rows to check before yielding to the event loop, which handles signals."""


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """Row of one of the job's files. `field` is the job field that names the file."""

    field: str
    file: str
    task: Task

    def problem(self, code: str, part: str, message: str, fix: str) -> Problem:
        return Problem(code, f"{self.field}{part}", message, fix, self.file, self.line)

    @property
    def line(self) -> int:
        return self.task.line


def read_files(job: JobSpec) -> tuple[dict[str, list[Task]], list[Problem]]:
    """Read the job's files. Return the valid rows, and the problems of invalid lines.

    The rows are in a dict. It maps the job field that names a file, such as `training_file`, to the rows of the file.
    If the job does not set the field, the list of rows is empty.
    """
    files: dict[str, list[Task]] = {}
    problems: list[Problem] = []
    for name in FILES:
        path, files[name] = getattr(job, name), []
        if path is not None:
            files[name], bad = read_tasks(Path(path), name, is_supervised=job.method.type == "supervised")
            problems += bad
    return files, problems


def list_rows(job: JobSpec, files: Mapping[str, Sequence[Task]]) -> list[CheckedRow]:
    """Return the rows of all files, in the order of `files`."""
    return [CheckedRow(name, Path(getattr(job, name)).name, task) for name, tasks in files.items() for task in tasks]


def check_conversations(rows: Sequence[CheckedRow]) -> list[Problem]:
    """Return problems of supervised rows, such as broken tool calls. Some problems are only warnings."""
    return [row.problem(*finding) for row in rows for finding in find_supervised_findings(row.task)]


def check_tools(reinforcement: Reinforcement, rows: Sequence[CheckedRow]) -> list[Problem]:
    """Check that the tools of each row have a server in the job and a valid schema."""
    problems = []
    served = {tool.name for tool in reinforcement.tools}
    grammar = reinforcement.response_format is not None  # the grammar includes the schemas of calls
    errors: dict[str, SchemaProblem | None] = {}
    for row in rows:
        for i, tool in enumerate(row.task.tools):
            function = tool["function"]
            if function["name"] not in served:
                message = f"the row's tool {function['name']!r} has no server"
                fix = f"add an entry with this name and its server_url to {TOOLS}"
                problems.append(row.problem("tool_without_server", f".tools[{i}]", message, fix))
            schema = function.get("parameters")
            try:
                key = json.dumps(schema, sort_keys=True)
            except RecursionError:
                key = "nested too deep"
            if key not in errors:
                errors[key] = find_schema_problem(schema, grammar=grammar)
            if (error := errors[key]) is not None:
                where = f".tools[{i}].function.parameters"
                problems.append(row.problem(error.code, where, str(error), error.fix))
    return problems


def check_row_sizes(reinforcement: Reinforcement, rows: Sequence[CheckedRow]) -> list[Problem]:
    """Return a problem for each row that is too large for requests to tools, sessions and endpoint graders.

    Each request contains the full row.
    """
    session = reinforcement.session
    always = (session is not None and session.start_url is not None) or any(
        isinstance(spec, EndpointGrader) for _, spec in iterate_graders(reinforcement)
    )
    problems = []
    for row in rows:
        if (always or row.task.tools) and (size := len(encode_json(row.task.item))) > MAX_ROW_BYTES:
            message = (
                f"the row has {size:,} bytes, but at most {MAX_ROW_BYTES:,} are allowed: the row is sent together "
                f"with a call's arguments in one request of at most {MAX_REQUEST_BYTES:,} bytes"
            )
            problems.append(row.problem("row_too_large", "", message, SIZE_FIX))
    return problems


def check_template_values(reinforcement: Reinforcement, rows: Sequence[CheckedRow]) -> list[Problem]:
    """Check the values that the graders' templates insert from each row.

    Return problems for missing values, and for templates that become too long.
    """
    templates = [
        (f"{field}.{name}", template)
        for field, spec in iterate_graders(reinforcement)
        for name, template in iterate_templates(spec)
    ]
    if not rows or not templates:
        return []
    sample = make_example_sample(reinforcement, rows[0].task)
    problems = []
    for row in rows:
        for where, template in templates:
            try:
                render(template, where, item=row.task.item, sample=sample)
            except GraderFailed as error:
                if error.details.get("kind") == TOO_LONG:
                    problems.append(row.problem("row_too_large", "", error.message, SIZE_FIX))
                elif (path := str(error.details["path"])).startswith("item"):
                    fix = "add the value to the row, or fix the grader's template"
                    if _has_value(row.task.item, f"item.{path}"):
                        fix = f"write {{{{ item.{path} }}}}, because the row itself has a key `item`"
                    message = error.message.removesuffix(f" [{INVALID_VARIABLE}]")
                    problems.append(row.problem("missing_value", "", message, fix))
    return problems


def _has_value(item: dict[str, Any], path: str) -> bool:
    """Return whether a template's path has a value in the row."""
    try:
        render(f"{{{{ {path} }}}}", path, item=item, sample={})
    except GraderFailed:
        return False
    return True


async def check_row_lengths(
    rows: Sequence[CheckedRow],
    renderer: Renderer,
    context_length: int,
    *,
    conversations: bool,
    tools_in_prompt: bool = True,
) -> list[Problem]:
    """Return problems of rows whose prompt does not fit in the context or cannot be rendered completely.

    With `conversations`, rows are supervised conversations, whose training samples are checked instead of prompts.
    With `tools_in_prompt`, the prompt must show all tools of its row.
    """
    problems: list[Problem] = []
    for i, row in enumerate(rows):
        if i % ROWS_AT_ONCE == 0:
            await asyncio.sleep(0)
        messages, tools = row.task.messages, row.task.tools
        try:
            if conversations:
                text = renderer.render_text(messages, tools, add_generation_prompt=False)
                length = max(
                    (len(sample.token_ids) for sample in split_conversation(renderer, messages, tools)), default=0
                )
            else:
                text = renderer.render_text(messages, tools, add_generation_prompt=True)
                length = len(renderer.encode(text)) + MIN_ANSWER_TOKENS
        except RenderFailed as error:
            if error.code == "template_too_costly":  # every row may take this long, so stop here
                return [*problems, row.problem(error.code, ".messages", error.problem, error.fix)]
            problems.append(_make_unrenderable(row, error))
            continue
        except UnsplittableConversation as error:
            problems.append(row.problem("unrenderable_row", ".messages", str(error), "use another chat template"))
            continue
        except Exception:  # noqa: BLE001 - tokenizers raise many types, whose messages name types of Python
            message = "the model's tokenizer cannot encode this row"
            problems.append(row.problem("unrenderable_row", ".messages", message, COMPARE_FIX))
            continue
        problems += _missing_in_prompt(row, text, tools_in_prompt)
        if length > context_length:
            message = f"the row needs {length} tokens, but the context has {context_length}"
            fix = "shorten the row or raise cluster.context_length"
            problems.append(row.problem("row_too_long", ".messages", message, fix))
    return problems


def _make_unrenderable(row: CheckedRow, error: RenderFailed) -> Problem:
    """Return the problem of a row that the template cannot render."""
    if error.kind == "misplaced":
        return row.problem("unrenderable_row", ".messages", error.problem, error.fix)
    if error.kind != "failed":
        return row.problem("unrenderable_row", ".messages", error.problem, "fix the row or the template")
    # The error of a template that fails, but does not reject the row, names types of Python.
    where = "the chat template" if error.line is None else f"line {error.line} of the chat template"
    return row.problem("unrenderable_row", ".messages", f"{where} fails with the values of this row", COMPARE_FIX)


def _missing_in_prompt(row: CheckedRow, text: str, tools_in_prompt: bool) -> list[Problem]:
    """Return a problem if the prompt's `text` lacks a tool of the row, or a system or user message."""
    names = [tool["function"]["name"] for tool in row.task.tools]
    if tools_in_prompt and (missing := [name for name in names if name not in text]):
        message = f"the prompt does not show the tool{'s' * (len(missing) > 1)} {', '.join(missing)}"
        return [row.problem("tools_not_in_prompt", ".tools", message, TOOLS_FIX)]
    for i, given in enumerate(row.task.messages):
        content = given.get("content")
        if given["role"] in ("assistant", "tool") or not isinstance(content, str):
            continue
        if content.strip()[:SHOWN_CHARS] not in text:
            message = f"the prompt does not show this message, whose role is {given['role']}"
            fix = "change the role or the text of the message, or use another template"
            return [row.problem("message_not_in_prompt", f".messages[{i}]", message, fix)]
    return []
