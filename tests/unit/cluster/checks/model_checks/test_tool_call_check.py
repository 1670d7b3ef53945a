"""Models whose calls no parser reads: jobs without tools are accepted with a warning, rows that need calls refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_rft.chat.model_card import FILE, read_card
from agent_rft.cluster.checks.check_job import CheckedJob, check_job
from agent_rft.cluster.checks.prompt_preview import preview_prompt
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.cluster.run.actor_configs import model_files
from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.job import JobSpec
from agent_rft.spec.job_file import load_job
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from tests.support.builders import EXACT
from tests.support.families import TINY
from tests.support.job_case import NODE, PLENTY
from tests.support.tiny_model import SPECIAL, WITHOUT_TOOLS, write_tiny_model

QUESTION = {"role": "user", "content": "Where is order A 17?"}
ANSWER = {"role": "assistant", "content": "It was sent."}
TOOL = {"type": "function", "function": {"name": "find_order", "parameters": {"type": "object"}}}
CALL = {"id": "call", "type": "function", "function": {"name": "find_order", "arguments": "{}"}}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call", "content": "sent"}
SERVED = {"name": "find_order", "server_url": "https://tools.example/"}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}


@dataclass
class Case:
    """A job for a model in `folder`, whose chat template renders no calls."""

    folder: Path

    def job(self, rows: Sequence[Mapping[str, Any]], **changes: Any) -> JobSpec:
        lines = [json.dumps({"reference_answer": "sent", **row}) for row in rows]
        (self.folder / "train.jsonl").write_text("\n".join(lines))
        method = {"type": "reinforcement", "reinforcement": {"grader": EXACT}}
        job = {"model": "model", "training_file": "train.jsonl", "method": method, **changes}
        (self.folder / "job.json").write_text(json.dumps(job))
        return load_job(self.folder / "job.json", {})

    async def prepare(self, *rows: Mapping[str, Any], **changes: Any) -> CheckedJob:
        job = self.job(rows, **changes)
        return await check_job(
            job,
            ModelFolder.find(job.model),
            [NODE],
            self.folder / "runs",
            DEFAULT_CONFIG,
            free_space=PLENTY,
            dry_run=False,
        )

    async def problems(self, *rows: Mapping[str, Any], **changes: Any) -> list[Problem]:
        with pytest.raises(InvalidJob) as raised:
            await self.prepare(*rows, **changes)
        return raised.value.problems


@pytest.fixture
def case(tmp_path: Path) -> Case:
    write_tiny_model(tmp_path / "model", template=WITHOUT_TOOLS)
    return Case(tmp_path)


async def test_a_job_without_tools_is_accepted_with_a_warning(case: Case) -> None:
    found = await case.prepare({"messages": [QUESTION]})
    (warning,) = [text for text in found.warnings if text.startswith("model: ")]
    unread = "no parser reads tool calls in the syntax of the model's chat template"
    assert f"works only without tools, because {unread}" in warning
    assert "[tools_unsupported]" in warning and "agent-rft models template FOLDER" in warning
    assert (found.dialect.family, found.dialect.tool_parser) == ("unknown", None)
    assert found.renderer.stop_tokens == {found.renderer.tokenizer.eos_token_id: "<|im_end|>"}


async def test_a_supervised_job_and_a_response_format_need_no_calls(case: Case) -> None:
    supervised = await case.prepare({"messages": [QUESTION, ANSWER]}, method={"type": "supervised"})
    reinforcement = {"grader": EXACT, "response_format": SCHEMA}
    constrained = await case.prepare(
        {"messages": [QUESTION]}, method={"type": "reinforcement", "reinforcement": reinforcement}
    )
    assert supervised.dialect.tool_parser is constrained.dialect.tool_parser is None


async def test_a_job_with_tools_is_refused(case: Case) -> None:
    reinforcement = {"grader": EXACT, "tools": [SERVED]}
    method = {"type": "reinforcement", "reinforcement": reinforcement}
    (problem,) = await case.problems({"messages": [QUESTION], "tools": [TOOL]}, method=method)
    assert (problem.code, problem.field) == ("calls_not_parsed", "model_options.tool_parser")
    unread = "reads tool calls in the syntax of the model's chat template"
    assert f"{unread}: the template does not render calls" in problem.message
    assert "agent-rft models template FOLDER" in problem.fix


@pytest.mark.parametrize(
    ("row", "part", "what"),
    [
        ({"messages": [QUESTION, ANSWER], "tools": [TOOL]}, ".tools", "tools"),
        ({"messages": [QUESTION, CALLS, RESULT, ANSWER]}, ".messages[1].tool_calls", "a tool call"),
        ({"messages": [QUESTION, RESULT, ANSWER]}, ".messages[1]", "a tool result"),
    ],
)
@pytest.mark.parametrize("method", ["supervised", "reinforcement"])
async def test_rows_that_need_calls_are_refused_with_their_lines(
    case: Case, row: dict[str, Any], part: str, what: str, method: str
) -> None:
    good = {"messages": [QUESTION, ANSWER]}
    rows, changes = [good, row, row], {"method": {"type": "supervised"}}
    if method == "reinforcement":
        rows, changes = [{**one, "messages": [*one["messages"], QUESTION]} for one in rows], {}
    problems = [one for one in await case.problems(*rows, **changes) if one.code != "tool_without_server"]
    (problem,) = problems
    assert (problem.code, problem.field, problem.rows) == ("calls_not_parsed", f"training_file{part}", "2-3")
    assert f"the row has {what}, but no parser reads tool calls" in problem.message
    assert "set model_options.chat_template" in problem.fix and "remove" in problem.fix


async def test_a_checkpoint_of_the_model_is_trained_and_gets_tools_with_another_template(case: Case) -> None:
    found = await case.prepare({"messages": [QUESTION]})
    files = model_files(found)
    files.write(case.folder / "model")
    card = read_card(case.folder / "model")
    assert card is not None and (card.family, card.tool_parser) == ("unknown", None)
    assert json.loads((case.folder / "model" / FILE).read_text())["tool_parser"] is None
    again = await case.prepare({"messages": [QUESTION]})
    assert (again.dialect.tool_parser, again.job.model_options.tool_parser) == (None, "auto")
    write_tiny_model(case.folder / "other")
    template = str(case.folder / "other" / "chat_template.jinja")
    with_tools = await case.prepare(
        {"messages": [QUESTION, CALLS, RESULT, ANSWER], "tools": [TOOL]},
        method={"type": "supervised"},
        model_options={"chat_template": template},
    )
    assert with_tools.dialect.tool_parser == "hermes"
    assert not [text for text in with_tools.warnings if "tools_unsupported" in text]


async def test_a_template_that_loses_results_serves_jobs_without_tools(case: Case) -> None:
    shown = (write_tiny_model(case.folder / "other") / "chat_template.jinja").read_text()
    loses = shown.replace("{%- if m.role == 'tool' %}", "{%- if m.role == 'tool' %}{{ no() }}")
    (case.folder / "model" / "chat_template.jinja").write_text(loses)
    found = await case.prepare({"messages": [QUESTION]})
    assert (found.dialect.family, found.dialect.tool_parser) == ("hermes", None)
    assert any("cannot render the results of two calls" in text for text in found.warnings)


async def test_reasoning_keeps_the_marks_of_the_templates_family(case: Case) -> None:
    marks = ("[THINK]", "[/THINK]")
    template = WITHOUT_TOOLS.replace("m.content", "m.content.replace('[/THINK]', '[/THINK] ')")
    write_tiny_model(case.folder / "model", template=template, special=(*SPECIAL, *marks))
    found = await case.prepare({"messages": [QUESTION]})
    assert (found.dialect.family, found.dialect.reasoning_delimiters) == ("mistral", marks)
    delimiters = [*map(found.renderer.tokenizer.convert_tokens_to_ids, marks)]
    assert found.renderer.count_reasoning([delimiters[0], 65, delimiters[1], 66]) == 3


async def test_a_family_whose_turns_are_messages_needs_its_parser_without_tools_too(case: Case) -> None:
    family = TINY["gpt_oss"]
    family.write(case.folder / "model")
    template = case.folder / "model" / "chat_template.jinja"
    template.write_text(template.read_text().replace("to=functions.", "to=functions/", 1) + "{# to=functions. #}")
    (problem,) = await case.problems({"messages": [QUESTION]})
    assert (problem.code, problem.field) == ("calls_not_parsed", "model_options.tool_parser")


def test_the_shown_prompt_is_that_of_a_model_without_tools(case: Case) -> None:
    job = case.job([{"messages": [QUESTION]}])
    shown = preview_prompt(job, ModelFolder.find(job.model))
    assert shown is not None and shown.dialect.tool_parser is None
