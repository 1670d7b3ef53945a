"""The tables of rows and messages in docs/formats.md: each line does what it says."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent_rft.actors.graders.grader_templates import render
from agent_rft.chat.renderer import Renderer
from agent_rft.problems import is_warning
from agent_rft.rows.dataset_rows import read_tasks
from agent_rft.rows.supervised_findings import find_supervised_findings, is_trained
from agent_rft.types import Task
from tests.docs.test_tool_lists import table
from tests.support.templates import template, tokenizer_for

ITEMS = table("Row", "`item`")
MESSAGES = table("Message in a row", "The model reads")
TOOLS = table("Tool in a row's `tools`", "The model reads")
REFUSED = table("Refused row", "Reason")
SUPERVISED = table("Messages", "Result of `check`")
UNCHANGED = {"the row", "the message", "the call", "the tool"}
QUESTION = {"role": "user", "content": "hi"}
CALL = MESSAGES[5][0].strip("`")
"""The row "the same call" and "the result of the next call" refer to it."""
FIND = {
    "name": "find",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOL = {"type": "function", "function": FIND}


def codes(cell: str) -> list[str]:
    """The JSON values in a cell."""
    return [code for code in re.findall(r"`([^`]+)`", cell) if code.startswith("{") and not code.startswith("{{")]


def examples(rows: list[list[str]]) -> list[Any]:
    return [pytest.param(code, row[1], id=code[:60]) for row in rows for code in codes(row[0])]


def variants(rows: list[list[str]]) -> list[Any]:
    """The examples, and each once more for a role or type that is the same."""
    found = examples(rows)
    for cell, reads in rows:
        for name in re.findall(r"`(\w+)`", cell):
            code = codes(cell)[0].replace(f': "{"user" if name == "system" else "text"}"', f': "{name}"')
            assert name in code
            found.append(pytest.param(code, reads, id=name))
    return found


def read(folder: Path, row: str, *, is_supervised: bool = False) -> Task:
    (folder / "rows.jsonl").write_text(row)
    (task,), problems = read_tasks(folder / "rows.jsonl", "training_file", is_supervised=is_supervised)
    assert problems == []
    return task


@cache
def renderer() -> Renderer:
    """A renderer whose template does not render developer messages."""
    return Renderer(tokenizer_for(template("qwen3")))


def rendered(task: Task) -> str:
    return renderer().render_text(task.messages, task.tools, add_generation_prompt=True)


@pytest.mark.parametrize(("row", "item"), examples(ITEMS))
def test_each_row_becomes_the_item(row: str, item: str, tmp_path: Path) -> None:
    task = read(tmp_path, row)
    assert task.item == json.loads(row if item.split(",")[0] in UNCHANGED else codes(item)[0])
    path = re.findall(r"`(\{\{.*\}\})`", item) or ["{{ item.answer }}"]
    assert render(path[0], "", item=task.item, sample={}) == "1"


@pytest.mark.parametrize(("message", "reads"), variants(MESSAGES))
def test_the_model_reads_each_message_as_the_table_says(message: str, reads: str, tmp_path: Path) -> None:
    expected = codes(reads)[0] if codes(reads) else CALL if "call" in reads and "tool" not in message else message
    before: list[Any] = [] if json.loads(message)["role"] in ("developer", "system") else [QUESTION]
    if json.loads(message)["role"] == "tool":
        before.append(json.loads(CALL))
        expected = codes(reads)[0] if codes(reads) else '{"role": "tool", "tool_call_id": "1", "content": "a"}'
    given, wanted = (
        read(tmp_path, json.dumps({"messages": [*before, json.loads(one), QUESTION]})) for one in (message, expected)
    )
    assert rendered(given) == rendered(wanted)
    assert ">a" in rendered(given) or "\na" in rendered(given) or '"Bern"' in rendered(given)


@pytest.mark.parametrize(("tool", "reads"), examples(TOOLS))
def test_each_tool_is_read_as_the_table_says(tool: str, reads: str, tmp_path: Path) -> None:
    task = read(tmp_path, json.dumps({"messages": [QUESTION], "tools": [json.loads(tool)]}))
    assert task.tools == (json.loads(tool if reads in UNCHANGED else codes(reads)[0]),)
    assert '"find"' in rendered(task)


@pytest.mark.parametrize(("row", "reason"), examples(REFUSED))
def test_each_refused_row_gets_the_reason(row: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(row)
    tasks, (problem,) = read_tasks(tmp_path / "rows.jsonl", "training_file")
    assert not tasks and problem.line == 1 and problem.fix
    assert reason.replace("`item`", "item") in problem.message.replace("`item`", "item")


@pytest.mark.parametrize(("cell", "result"), SUPERVISED)
def test_each_supervised_row_gets_the_result(cell: str, result: str, tmp_path: Path) -> None:
    row = {"messages": [QUESTION, *map(json.loads, codes(cell))], "tools": [TOOL]}
    kind, _, rest = result.partition(" ")
    rows = [row]
    if "weight" in cell and kind == "warning":  # each message is a row of its own
        rows = [row | {"messages": [QUESTION, json.loads(message)]} for message in codes(cell)]
    for one in rows:
        task = read(tmp_path, json.dumps(one), is_supervised=True)
        found = [finding.code for finding in find_supervised_findings(task)]
        assert found == ([] if kind.startswith("valid") else re.findall(r"`(\w+)`", rest))
        assert all(is_warning(code) == (kind == "warning") for code in found)
        if "trains the last message" in rest:
            assert [is_trained(message) for message in task.messages][-1]
            assert sum(map(is_trained, task.messages)) == 1


def test_a_call_without_tools_is_an_error(tmp_path: Path) -> None:
    task = read(tmp_path, json.dumps({"messages": [QUESTION, json.loads(CALL)]}), is_supervised=True)
    assert [finding.code for finding in find_supervised_findings(task)] == ["call_without_tools"]
    assert not is_warning("call_without_tools")


def test_every_line_is_executed() -> None:
    assert [len(rows) for rows in (ITEMS, MESSAGES, TOOLS, REFUSED, SUPERVISED)] == [3, 9, 3, 9, 10]
