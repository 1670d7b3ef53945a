"""Mutated rows and requests: whatever a value is, no message names types, exceptions or functions of Python."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import AutoTokenizer

from agent_rft.chat.renderer import Renderer
from agent_rft.cluster.checks.row_checks import CheckedRow, check_conversations, check_row_lengths
from agent_rft.errors import Problem
from agent_rft.rows.dataset_rows import read_tasks
from agent_rft.spec.config_reader import describe_requirement
from agent_rft.wire.chat_schema import ChatRequest
from agent_rft.wire.responses_schema import ResponsesRequest
from tests.support.job_case import tool
from tests.support.paths import BASE

PYTHON = re.compile(
    r"\w+(Error|Exception)\b|NoneType|\bNone\b|\b(True|False)\b|' object|\bobject of type\b|\binstance of\b|Traceback"
    r"|\b(str|dict|tuple|bool|sys|json|pydantic)\b|\w\(\)|__|\bindices\b|not subscriptable|codec|recursion"
)
CALL = {"id": "call_1", "type": "function", "function": {"name": "cat", "arguments": '{"path": "a"}'}}
ROW: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "reasoning": "so", "tool_calls": [CALL], "weight": 1},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
        {"role": "assistant", "content": "ho"},
    ],
    "tools": [tool()],
}
REQUEST = {"model": "m", "messages": [*ROW["messages"], {"role": "user", "content": "go"}], "tools": [tool()]}
RESPONSE: dict[str, Any] = {
    "model": "m",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "function_call", "call_id": "call_1", "name": "cat", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "42"},
    ],
    "tools": [{"type": "function", "name": "cat", "parameters": {}}],
}
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -3, 2.5, "", "a", "user", "assistant", "tool", "{}", "[1]", "image_url", "text", "call_1"]),
    st.sampled_from([[], {}, [1], ["a"], [[]], [{}], {"a": 1}, {"type": "text"}, {"type": "image"}, {"name": None}]),
)


def iterate_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value below the root."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from iterate_paths(inner, (*path, key))


@st.composite
def mutated(draw: st.DrawFn, original: dict[str, Any]) -> dict[str, Any]:
    """A copy in which one to three values are replaced, deleted, or doubled."""
    changed = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, 3))):
        *parents, key = draw(st.sampled_from(list(iterate_paths(changed)) or [("a",)]))
        place = changed
        for parent in parents:
            place = place[parent]
        match draw(st.sampled_from(["replace", "replace", "delete", "double"])):
            case "replace":
                place[key] = draw(VALUES)
            case "delete" if key in place or isinstance(place, list):
                del place[key]
            case "double" if isinstance(place, list):
                place.insert(key, copy.deepcopy(place[key]))
    return changed


def assert_is_plain(problems: list[Problem]) -> None:
    for problem in problems:
        assert problem.message and problem.fix and problem.line == 1
        assert not PYTHON.search(problem.message), problem.message


RENDERER = Renderer(AutoTokenizer.from_pretrained(BASE))


def check_line(line: str, *, is_supervised: bool) -> list[Problem]:
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write(line)
        file.flush()
        tasks, problems = read_tasks(Path(file.name), "training_file", is_supervised=is_supervised)
    rows = [CheckedRow("training_file", "train.jsonl", task) for task in tasks]
    problems += check_conversations(rows) if is_supervised else []
    return problems + asyncio.run(check_row_lengths(rows, RENDERER, 10_000, conversations=is_supervised))


@given(mutated(ROW))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_no_message_about_a_mutated_row_names_python(row: dict[str, Any]) -> None:
    assert_is_plain(check_line(json.dumps(row), is_supervised=True))
    if isinstance(row.get("messages"), list):
        row = row | {"messages": [*row["messages"][:-1], {"role": "user", "content": "go"}]}
    assert_is_plain(check_line(json.dumps(row), is_supervised=False))


@given(st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_no_message_about_a_mutated_line_names_python(data: st.DataObject) -> None:
    line = json.dumps(ROW)
    at = data.draw(st.integers(1, len(line)))
    pieces = [
        "",
        '"',
        "{",
        "]",
        ",",
        "\\ud800",
        "NaN",
        "1e999",
        "9" * 5_000,
        "[" * 5_000,
        '"content": 1, ',
        "\x00",
        "null",
    ]
    changed = line[:at] + data.draw(st.sampled_from(pieces)) + line[at + data.draw(st.integers(0, 3)) :]
    assert_is_plain(check_line(changed, is_supervised=True))


@given(mutated(REQUEST), mutated(RESPONSE))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_no_message_about_a_mutated_request_names_python(chat: dict[str, Any], response: dict[str, Any]) -> None:
    for model, body in ((ChatRequest, chat), (ResponsesRequest, response)):
        try:
            model.model_validate(body)
        except ValidationError as error:
            for each in error.errors():
                message = describe_requirement(each, is_json=True)
                assert not PYTHON.search(message), message


def test_a_template_that_fails_is_named_by_its_line() -> None:
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    tokenizer.chat_template = "{{ messages[0].content }}\n{{ messages[0].name + 'a' }}"
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write('{"messages": [{"role": "user", "content": "hi", "name": null}]}')
        file.flush()
        tasks, _ = read_tasks(Path(file.name), "training_file")
    rows = [CheckedRow("training_file", "train.jsonl", task) for task in tasks]
    (problem,) = asyncio.run(check_row_lengths(rows, Renderer(tokenizer), 10_000, conversations=False))
    assert problem.message == "line 2 of the chat template fails with the values of this row"
