"""Dataset files: every mistake names its line; the order is seeded and resumable by row ids."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from agent_rft.problems import is_warning
from agent_rft.rows.dataset_rows import RowOrder, format_ranges, read_tasks
from tests.support.builders import task, tasks_of

GOOD = {"messages": [{"role": "user", "content": "hi"}], "reference": 1}

IMAGE = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "cat", "arguments": "{}"}}


def with_turn(turn: dict[str, Any]) -> dict[str, Any]:
    """A row whose second message is an assistant's, unless `turn` has another role."""
    question = {"role": "user", "content": "hi"}
    return {"messages": [question, {"role": "assistant", **turn}, question]}


def write(folder: Path, *lines: object) -> Path:
    path = folder / "train.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_rows_become_tasks_that_keep_all_other_keys(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "cat", "parameters": {}}}
    (first, second) = tasks_of(write(tmp_path, GOOD, "", GOOD | {"tools": [tool]}))
    assert first.item["reference"] == 1
    assert second.tools == (tool,)
    assert second.row_id.startswith("3-")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "function", "name": "cat", "description": "Reads.", "parameters": {}, "strict": True}, None),
        ({"type": "function", "function": None, "name": "cat", "parameters": {"type": "object"}}, None),
        ({"type": "function", "name": "cat", "parameters": None}, {"name": "cat"}),
        ({"type": "function", "function": {"name": "cat", "parameters": None}}, {"name": "cat"}),
        ({"type": "function", "function": {"name": "cat"}}, {"name": "cat"}),
    ],
)
def test_tools_in_both_formats_of_openai_become_chat_tools(
    given: dict[str, Any], expected: dict[str, Any] | None, tmp_path: Path
) -> None:
    flat = {key: value for key, value in given.items() if key not in ("type", "function")}
    (row,) = tasks_of(write(tmp_path, GOOD | {"tools": [given]}))
    assert row.tools == ({"type": "function", "function": flat if expected is None else expected},)
    assert row.item["tools"] == [given], "graders and tools get the row as it is written"


def test_the_item_of_an_evaluation_is_the_row(tmp_path: Path) -> None:
    both = GOOD | {"item": {"messages": [], "reference": 2}}
    first, second = tasks_of(write(tmp_path, {"item": GOOD}, both))
    assert first.item == GOOD and first.messages[0]["content"] == "hi"
    assert second.item == both, "a row with messages may have a field `item`"


def test_unicode_line_separators_do_not_end_a_line(tmp_path: Path) -> None:
    row = '{"messages": [{"role": "user", "content": "a\u2028b\x85c"}]}'
    (only,) = tasks_of(write(tmp_path, row))
    assert only.messages[0]["content"] == "a\u2028b\x85c"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"messages": [', "is not valid JSON"),
        ("[1]", "must be a JSON object"),
        ({}, "messages is missing"),
        ({"messages": []}, "messages is missing or empty"),
        ({"item": {"question": "hi"}}, "messages is missing or empty"),
        ({"item": GOOD, "id": 1}, "messages is in `item`, which is not the only key"),
        ({"item": [GOOD]}, "messages is missing or empty"),
        ({"item": None}, "messages is missing or empty"),
        ({"messages": [{"role": "usr", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "the last message has the role assistant"),
        (GOOD | {"tools": {}}, "tools must be a list"),
        (GOOD | {"tools": [{"name": "cat"}]}, "tools[0].function.name"),
        (GOOD | {"tools": [{"function": {"name": "cat", "parameters": 1}}]}, "tools[0].function.parameters"),
        (GOOD | {"tools": [{"function": {"name": "cat"}}] * 2}, "same name"),
        (GOOD | {"tools": [{"function": {"name": "cat"}}, {"type": "function", "name": "cat"}]}, "same name"),
        (GOOD | {"tools": [{"type": "function", "parameters": {}}]}, "tools[0].function.name"),
        (GOOD | {"tools": [{"type": "web_search", "name": "cat"}]}, "tools[0].function.name"),
        (GOOD | {"tools": [{"type": "function", "name": "cat", "parameters": []}]}, "tools[0].function.parameters"),
        ('{"messages": [{"role": "user", "content": "x"}], "answer": NaN}', "NaN"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "half of a surrogate pair"),
        ('{"messages": [{"role": "user", "content": "x"}], "answer": 1e999}', "1e999 is too large"),
        ('{"messages": [{"role": "user", "content": "x"}], "answer": %s}' % ("9" * 5000), "has 5,000 digits"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": ["hi"]}, "messages[0] must be an object"),
        ({"messages": [{"content": "x"}]}, "messages[0].role is missing"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content must be a string"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0] must be an object"),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            "messages[0].content[0].type: the part type 'image_url'",
        ),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type is missing"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0]: the content part has",
        ),
        (with_turn({}), "messages[1]: content is missing: it may be omitted only if there are tool_calls"),
        (with_turn({"content": None, "tool_calls": []}), "messages[1]: content is missing"),
        (with_turn({"tool_calls": [{"id": "a"}]}), "messages[1].tool_calls[0].function is missing"),
        (with_turn({"tool_calls": ["cat"]}), "messages[1].tool_calls[0] must be an object"),
        (with_turn({"tool_calls": CALL}), "messages[1].tool_calls must be a list"),
        (with_turn({"tool_calls": [{"function": "cat"}]}), "messages[1].tool_calls[0].function must be an object"),
        (with_turn({"tool_calls": [{"function": {}}]}), "messages[1].tool_calls[0].function.name is missing"),
        (with_turn({"tool_calls": [{"function": {"name": None}}]}), "function.name must be a string"),
        (with_turn({"tool_calls": [CALL | {"id": ["a"]}]}), "messages[1].tool_calls[0].id must be a string"),
        (with_turn({"content": "x", "reasoning": {}}), "messages[1].reasoning must be a string"),
        (with_turn({"content": "x", "reasoning_content": 1}), "messages[1].reasoning_content must be a string"),
        (with_turn({"role": "tool", "content": "x", "tool_call_id": {}}), "messages[1].tool_call_id must be a string"),
        (with_turn({"role": "user", "content": "x", "tool_calls": "cat"}), "messages[1].tool_calls must be a list"),
        (GOOD | {"tools": [{"function": {"name": ["cat"]}}]}, "tools[0].function.name"),
    ],
)
def test_a_problem_with_a_row_has_field_line_and_fix(tmp_path: Path, line: object, said: str) -> None:
    _, (problem,) = read_tasks(write(tmp_path, GOOD, line), "training_file")
    assert said in problem.message
    assert (problem.field, problem.file, problem.line) == ("training_file", "train.jsonl", 2)
    assert problem.fix


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]}, "a\nb"),
        ({"role": "system", "content": [{"type": "text", "text": "a", "cache_control": {}}]}, "a"),
        ({"role": "user", "content": []}, ""),
        ({"role": "user", "content": "image_url, NaN, null"}, "image_url, NaN, null"),
        ({"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}, "a"),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, "no"),
        ({"role": "assistant", "content": None, "refusal": "no"}, "no"),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, None),
        ({"role": "assistant", "content": "", "tool_calls": None, "reasoning": "so"}, ""),
        ({"role": "tool", "content": [{"type": "text", "text": "a"}], "tool_call_id": "call_1"}, "a"),
        ({"role": "tool", "content": "a"}, "a"),
        ({"role": "tool", "content": "a", "tool_call_id": 3}, "a"),
        ({"role": "assistant", "content": None, "tool_calls": [CALL | {"id": 3}]}, None),
        ({"role": "user", "content": "a", "tool_calls": None, "name": "kim"}, "a"),
    ],
)
def test_text_parts_mean_their_text_and_other_keys_are_preserved(
    tmp_path: Path, message: dict[str, Any], text: str | None
) -> None:
    row = {"messages": [message, {"role": "user", "content": "hi"}]}
    (only,) = tasks_of(write(tmp_path, row))
    assert only.messages[0] == message | {"content": text}
    assert only.item == row, "tools and graders receive the row as it is"


@pytest.mark.parametrize("arguments", ["{}", "", None, {"path": "a"}, "not JSON", [1]])
def test_arguments_may_have_any_form(tmp_path: Path, arguments: object) -> None:
    call = {"function": {"name": "cat", "arguments": arguments}}
    (only,) = tasks_of(write(tmp_path, with_turn({"content": None, "tool_calls": [call]})))
    assert only.messages[1]["tool_calls"] == [call]


def test_a_duplicate_key_is_a_warning_and_its_last_value_counts(tmp_path: Path) -> None:
    row = '{"messages": [{"role": "user", "content": "a", "content": "b"}], "answer": {"x": 1, "x": 2}}'
    tasks, problems = read_tasks(write(tmp_path, GOOD, row), "training_file")
    assert [task.messages[0]["content"] for task in tasks] == ["hi", "b"]
    assert [(problem.code, problem.line) for problem in problems] == [("duplicate_row_key", 2)] * 2
    assert is_warning("duplicate_row_key") and "'content' is duplicated" in problems[0].message


def test_all_bad_rows_are_reported_together(tmp_path: Path) -> None:
    tasks, problems = read_tasks(write(tmp_path, "{", GOOD, "}", {}), "training_file")
    assert len(tasks) == 1
    assert [problem.line for problem in problems] == [1, 3, 4]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_is_reported_as_one_and_not_line_by_line(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "train.json"
    path.write_text("\n" + json.dumps([GOOD] * 30, indent=indent))
    tasks, (problem,) = read_tasks(path, "training_file")
    assert not tasks and problem.code == "json_array" and "jq -c '.[]'" in problem.fix


def test_lines_are_told_as_ranges_of_which_there_are_not_too_many() -> None:
    assert format_ranges([9, 1, 2, 3, 12, 13, 1]) == "1-3, 9, 12-13"
    assert format_ranges(range(0, 100, 2)).endswith(", 38 and 30 more")


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_file_is_a_problem(tmp_path: Path, content: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(content)
    assert [problem.code for problem in read_tasks(path, "training_file")[1]] == ["empty_file"]


def test_a_file_that_is_missing_or_not_text_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"{}\n\xff\xfe\x00")
    (tmp_path / "zipped").write_bytes(gzip.compress(b"0" * 10_000_000))  # files are never decompressed
    (tmp_path / "utf-16").write_text("{}", encoding="utf-16")
    assert [read_tasks(tmp_path / name, "f")[1][0].code for name in ("zipped", "utf-16")] == ["unreadable_file"] * 2
    assert read_tasks(tmp_path / "none", "f")[1][0].code == "missing_file"
    assert read_tasks(tmp_path, "f")[1][0].code == "unreadable_file"
    (problem,) = read_tasks(tmp_path / "binary", "f")[1]
    assert (problem.code, problem.line) == ("unreadable_file", 2)


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert len(tasks_of(path)) == 1


def test_a_conversation_must_end_with_the_assistant(tmp_path: Path) -> None:
    path = write(tmp_path, {"messages": [*GOOD["messages"], {"role": "assistant", "content": "ho"}]}, GOOD)  # type: ignore[misc]
    tasks, problems = read_tasks(path, "training_file", is_supervised=True)
    assert len(tasks) == 1
    assert "end each conversation with the assistant" in problems[0].fix


def test_each_epoch_has_every_row_once_in_its_own_order() -> None:
    tasks = [task(str(i)) for i in range(20)]
    rows = [(epoch, t.row_id) for epoch, t in islice(RowOrder(tasks, seed=1), 60)]
    epochs = [[row for epoch, row in rows if epoch == e] for e in range(3)]
    assert all(Counter(epoch) == Counter(str(i) for i in range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert rows == [(epoch, t.row_id) for epoch, t in islice(RowOrder(tasks, seed=1), 60)]
    assert rows != [(epoch, t.row_id) for epoch, t in islice(RowOrder(tasks, seed=2), 60)]


def test_a_resumed_order_leaves_out_finished_rows() -> None:
    tasks = [task(str(i)) for i in range(10)]
    whole = [t.row_id for _, t in islice(RowOrder(tasks, seed=3), 20)]
    resumed = [t.row_id for _, t in islice(RowOrder(tasks, 3, epoch=1, done=whole[10:14]), 6)]
    assert resumed == whole[14:]
