"""The rows of a job's files, checked against its tools, its graders and the context."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_rft.actors.endpoints.body import MAX_REQUEST_BYTES, MAX_ROW_BYTES, json_body
from agent_rft.actors.graders.templates import INVALID_VARIABLE, TOO_LONG, render
from agent_rft.actors.grading.factory import graders_of, templates_of
from agent_rft.chat.conversation import samples_of
from agent_rft.chat.renderer import Renderer
from agent_rft.chat.template import RenderFailed
from agent_rft.cluster.preflight.examples import example_sample
from agent_rft.cluster.preflight.form_check import TOOLS
from agent_rft.cluster.preflight.model_checks.dialect import TOOLS_REMEDY
from agent_rft.errors import GraderFailed, Problem
from agent_rft.rows.rows import read_tasks
from agent_rft.spec.graders import EndpointGrader
from agent_rft.spec.job import FILES, JobSpec, Reinforcement
from agent_rft.spec.schemas.form import SchemaMistake
from agent_rft.spec.schemas.json_schema import schema_mistake
from agent_rft.types import Task

MIN_ANSWER_TOKENS = 16
"""A prompt must leave at least this many tokens of the context for the answer."""
SHOWN_CHARS = 40
"""The beginning of a message that must be in the prompt; a template may strip its end."""
SIZE_REMEDY = "shorten the row: keep large values in a file that tools and graders read, and an id of them in the row"
ROWS_AT_ONCE = 200
"""Rows between two chances for the event loop to handle a signal."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A row of one of the job's files; `field` is the job field that names the file."""

    field: str
    file: str
    task: Task

    def problem(self, code: str, part: str, message: str, remedy: str) -> Problem:
        return Problem(code, f"{self.field}{part}", message, remedy, self.file, self.line)

    @property
    def line(self) -> int:
        return self.task.line


def read_files(job: JobSpec) -> tuple[dict[str, list[Task]], list[Problem]]:
    """The valid rows of each file by its field in the job (none for a file that is not given), and the bad lines."""
    files: dict[str, list[Task]] = {}
    problems: list[Problem] = []
    for name in FILES:
        path, files[name] = getattr(job, name), []
        if path is not None:
            files[name], bad = read_tasks(Path(path), name, conversations=job.method.type == "supervised")
            problems += bad
    return files, problems


def rows_of(job: JobSpec, files: Mapping[str, Sequence[Task]]) -> list[JobRow]:
    """The rows of all files, in order."""
    return [JobRow(name, Path(getattr(job, name)).name, task) for name, tasks in files.items() for task in tasks]


def tool_problems(reinforcement: Reinforcement, rows: Sequence[JobRow]) -> list[Problem]:
    """Rows that offer a tool without a server, or a tool whose schema is invalid."""
    problems = []
    served = {tool.name for tool in reinforcement.tools}
    grammar = reinforcement.response_format is not None  # which also holds the calls
    mistakes: dict[str, SchemaMistake | None] = {}
    for row in rows:
        for i, tool in enumerate(row.task.tools):
            function = tool["function"]
            if function["name"] not in served:
                message = f"the row's tool {function['name']!r} has no server"
                remedy = f"add an entry with this name and its server_url to {TOOLS}"
                problems.append(row.problem("tool_without_server", f".tools[{i}]", message, remedy))
            schema = function.get("parameters")
            try:
                key = json.dumps(schema, sort_keys=True)
            except RecursionError:
                key = "nested too deep"
            if key not in mistakes:
                mistakes[key] = schema_mistake(schema, grammar=grammar)
            if (mistake := mistakes[key]) is not None:
                where = f".tools[{i}].function.parameters"
                problems.append(row.problem(mistake.code, where, str(mistake), mistake.remedy))
    return problems


def size_problems(reinforcement: Reinforcement, rows: Sequence[JobRow]) -> list[Problem]:
    """Rows that are too large for the requests to tools, sessions and endpoint graders: each of them has its row."""
    session = reinforcement.session
    always = (session is not None and session.start_url is not None) or any(
        isinstance(spec, EndpointGrader) for _, spec in graders_of(reinforcement)
    )
    problems = []
    for row in rows:
        if (always or row.task.tools) and (size := len(json_body(row.task.item))) > MAX_ROW_BYTES:
            message = (
                f"the row takes {size:,} bytes, but at most {MAX_ROW_BYTES:,} are allowed: each request has its row, "
                f"and a call with its arguments at most {MAX_REQUEST_BYTES:,}"
            )
            problems.append(row.problem("row_too_large", "", message, SIZE_REMEDY))
    return problems


def value_problems(reinforcement: Reinforcement, rows: Sequence[JobRow]) -> list[Problem]:
    """Rows that lack a value which a grader's template reads, or have too long ones: none could be graded."""
    templates = [
        (f"{field}.{name}", template)
        for field, spec in graders_of(reinforcement)
        for name, template in templates_of(spec)
    ]
    if not rows or not templates:
        return []
    sample = example_sample(reinforcement, rows[0].task)
    problems = []
    for row in rows:
        for where, template in templates:
            try:
                render(template, where, item=row.task.item, sample=sample)
            except GraderFailed as error:
                if error.details.get("kind") == TOO_LONG:
                    problems.append(row.problem("row_too_large", "", error.message, SIZE_REMEDY))
                elif str(error.details["path"]).startswith("item"):
                    remedy = "add the value to the row, or fix the grader's template"
                    what = error.message.removesuffix(f" [{INVALID_VARIABLE}]")
                    problems.append(row.problem("missing_value", "", what, remedy))
    return problems


async def length_problems(
    rows: Sequence[JobRow],
    renderer: Renderer,
    context_length: int,
    *,
    conversations: bool,
    tools_in_prompt: bool = True,
) -> list[Problem]:
    """Rows whose prompt (with `conversations`: each sample) does not fit the context or cannot be rendered whole."""
    problems: list[Problem] = []
    for i, row in enumerate(rows):
        if i % ROWS_AT_ONCE == 0:
            await asyncio.sleep(0)
        messages, tools = row.task.messages, row.task.tools
        try:
            if conversations:
                text = renderer.rendered(messages, tools, generate=False)
                length = max(len(sample.token_ids) for sample in samples_of(renderer, messages, tools))
            else:
                text = renderer.rendered(messages, tools, generate=True)
                length = len(renderer.encode(text)) + MIN_ANSWER_TOKENS
        except RenderFailed as error:
            if error.code == "template_too_costly":  # perhaps for each row, so no other is rendered
                return [*problems, row.problem(error.code, ".messages", error.problem, error.remedy)]
            problems.append(row.problem("unrenderable_row", ".messages", error.problem, "fix the row or the template"))
            continue
        except Exception as error:  # noqa: BLE001 - the rest of rendering is not the template's
            message = f"the chat template cannot render the row: {type(error).__name__}: {error}"
            problems.append(row.problem("unrenderable_row", ".messages", message, "fix the row"))
            continue
        problems += _lacking(row, text, tools_in_prompt)
        if length > context_length:
            message = f"the row takes {length} tokens, the context holds {context_length}"
            remedy = "shorten the row or raise cluster.context_length"
            problems.append(row.problem("row_too_long", ".messages", message, remedy))
    return problems


def _lacking(row: JobRow, text: str, tools_in_prompt: bool) -> list[Problem]:
    """What the text of a row's prompt does not show: tools, or messages of others than the model."""
    names = [tool["function"]["name"] for tool in row.task.tools]
    if tools_in_prompt and (missing := [name for name in names if name not in text]):
        message = f"the prompt does not show the tool{'s' * (len(missing) > 1)} {', '.join(missing)}"
        return [row.problem("tools_not_in_prompt", ".tools", message, TOOLS_REMEDY)]
    for i, given in enumerate(row.task.messages):
        content = given.get("content")
        if given["role"] in ("assistant", "tool") or not isinstance(content, str):
            continue
        if content.strip()[:SHOWN_CHARS] not in text:
            message = f"the prompt does not show this message, of the role {given['role']}"
            remedy = "change the role or the text of the message, or use another template"
            return [row.problem("message_not_in_prompt", f".messages[{i}]", message, remedy)]
    return []
