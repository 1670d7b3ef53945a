"""Supervised rows that would teach broken calls: each finding names its message and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from agent_rft.problems import is_warning
from agent_rft.rows.supervised_findings import RowFinding, find_supervised_findings
from agent_rft.types import Task
from tests.support.job_case import tool

QUESTION = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "ho"}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "42"}


def call(id: str | None = "call_1", name: str = "cat", arguments: Any = '{"path": "a"}') -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def turn(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls or [call()]), **more}


TOOLS = (tool(), tool("list", None))


def find(*messages: dict[str, Any], tools: Any = TOOLS) -> list[RowFinding]:
    return list(find_supervised_findings(Task("1-0", messages, tuple(tools), {})))


@pytest.mark.parametrize(
    "messages",
    [
        [QUESTION, ANSWER],
        [QUESTION, turn(), RESULT, ANSWER],
        [QUESTION, turn(call("a"), call("b")), RESULT | {"tool_call_id": "b"}, RESULT | {"tool_call_id": "a"}, ANSWER],
        [
            QUESTION,
            turn(call(None), call(None)),
            {"role": "tool", "content": "1"},
            {"role": "tool", "content": "2"},
            ANSWER,
        ],
        [QUESTION, turn(call(None)), RESULT, ANSWER],
        [QUESTION, turn(), {"role": "tool", "content": "1"}, ANSWER],
        [QUESTION, turn()],
        [QUESTION, turn(), RESULT, turn(), RESULT, ANSWER, QUESTION, ANSWER],
        [QUESTION, turn(call(arguments={"path": "a"})), RESULT, ANSWER],
        [QUESTION, turn(call(name="list", arguments="")), RESULT, ANSWER],
        [QUESTION, turn(call(name="list", arguments=None)), RESULT, ANSWER],
        [QUESTION, turn(call(name="list", arguments='{"any": 1}')), RESULT, ANSWER],
        [QUESTION, ANSWER | {"weight": 0}, QUESTION, ANSWER | {"weight": 1}],
        [QUESTION, ANSWER | {"weight": 0.0}, QUESTION, ANSWER | {"weight": None}],
        [QUESTION | {"weight": 7}, ANSWER],
        [QUESTION, turn(call(name="rm", arguments="no JSON"), weight=0), RESULT, ANSWER],
        [QUESTION, ANSWER, ANSWER | {"weight": 0}, QUESTION, ANSWER],
    ],
)
def test_a_valid_row_has_no_findings(messages: list[dict[str, Any]]) -> None:
    assert find(*messages) == []


@pytest.mark.parametrize(
    ("messages", "code", "part", "words"),
    [
        ([turn(), ANSWER], "unanswered_call", "[1].tool_calls[0]", "the call of 'cat' has no result"),
        ([turn(call("a"), call("b")), RESULT | {"tool_call_id": "b"}, ANSWER], "unanswered_call",
         "[1].tool_calls[0]", ""),
        ([turn(call(None), call(None)), RESULT, ANSWER], "unanswered_call", "[1].tool_calls[1]", ""),
        ([turn(), RESULT | {"tool_call_id": "call_2"}, ANSWER], "unanswered_call", "[1].tool_calls[0]", ""),
        ([turn(weight=0), QUESTION, ANSWER], "unanswered_call", "[1].tool_calls[0]", ""),
        ([turn(), RESULT, RESULT, ANSWER], "unanswered_call", "[1]", "more results than calls"),
        ([RESULT, ANSWER], "unanswered_call", "[1]", "follows no tool call"),
        ([turn(call(name="rm")), RESULT, ANSWER], "unknown_tool", "[1].tool_calls[0]", "calls 'rm', but does not have"),
        ([turn(call(arguments='{"path": ')), RESULT, ANSWER], "invalid_arguments",
         "[1].tool_calls[0].function.arguments", "are not valid JSON: Expecting value at column 10"),
        ([turn(call(arguments='{"path": NaN}')), RESULT, ANSWER], "invalid_arguments",
         "[1].tool_calls[0].function.arguments", "NaN is not a JSON number"),
        ([turn(call(arguments="[" * 100_000)), RESULT, ANSWER], "invalid_arguments",
         "[1].tool_calls[0].function.arguments", "nested too deeply"),
        ([turn(call(arguments='["a"]')), RESULT, ANSWER], "invalid_arguments",
         "[1].tool_calls[0].function.arguments", "are not a JSON object"),
        ([turn(call(arguments="")), RESULT, ANSWER], "invalid_arguments",
         "[1].tool_calls[0].function.arguments", "violate the tool's schema at $"),
        ([turn(call(arguments={"path": 3})), RESULT, ANSWER], "invalid_arguments",
         "[1].tool_calls[0].function.arguments", "at $.path"),
        ([ANSWER, ANSWER], "repeated_assistant", "[2]", "follows an assistant message"),
        ([ANSWER | {"weight": 0}, ANSWER], "repeated_assistant", "[2]", "follows an assistant message"),
        ([ANSWER | {"weight": 0.5}], "invalid_weight", "[1].weight", "the weight 0.5 counts as 1"),
        ([ANSWER | {"weight": "0"}], "invalid_weight", "[1].weight", 'the weight "0" counts as 1'),
        ([ANSWER | {"weight": True}], "invalid_weight", "[1].weight", "the weight true counts as 1"),
        ([ANSWER | {"weight": False}, QUESTION, ANSWER], "invalid_weight", "[1].weight", "weight false counts as 0"),
        ([ANSWER | {"weight": 2}], "invalid_weight", "[1].weight", "the weight 2 counts as 1"),
        ([ANSWER | {"weight": 0}], "nothing_trained", "", "nothing in the row is trained"),
    ],
)  # fmt: skip
def test_each_fault_has_one_finding(messages: list[dict[str, Any]], code: str, part: str, words: str) -> None:
    (finding,) = find(QUESTION, *messages)
    assert (finding.code, finding.part) == (code, f".messages{part}")
    assert words in finding.message and finding.fix


def test_calls_in_a_row_without_tools_are_an_error() -> None:
    (finding,) = find(QUESTION, turn(), RESULT, ANSWER, tools=())
    assert (finding.code, finding.part) == ("call_without_tools", ".messages[1].tool_calls[0]")


@pytest.mark.parametrize(
    ("code", "warns"),
    [
        ("unanswered_call", False),
        ("call_without_tools", False),
        ("nothing_trained", False),
        ("unknown_tool", True),
        ("invalid_arguments", True),
        ("repeated_assistant", True),
        ("invalid_weight", True),
    ],
)
def test_a_row_that_no_served_model_could_have_produced_is_an_error(code: str, warns: bool) -> None:
    assert is_warning(code) is warns


def test_an_invalid_schema_of_a_tool_does_not_end_the_check() -> None:
    assert find(QUESTION, turn(), RESULT, ANSWER, tools=[tool(parameters={"type": "objet"})]) == []
