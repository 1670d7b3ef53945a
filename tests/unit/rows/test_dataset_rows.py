"""Dataset files: every mistake names its line; the order is seeded and resumable by row ids."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from agent_rft.rows.dataset_rows import RowOrder, format_ranges, read_tasks
from tests.support.builders import task, tasks_of

GOOD = {"messages": [{"role": "user", "content": "hi"}], "reference": 1}


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
        ({"messages": [{"role": "usr", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "the last message has the role assistant"),
        (GOOD | {"tools": {}}, "tools must be a list"),
        (GOOD | {"tools": [{"name": "cat"}]}, "tools[0].function.name"),
        (GOOD | {"tools": [{"function": {"name": "cat", "parameters": 1}}]}, "tools[0].function.parameters"),
        (GOOD | {"tools": [{"function": {"name": "cat"}}] * 2}, "same name"),
        ('{"messages": [{"role": "user", "content": "x"}], "answer": NaN}', "NaN"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "surrogates not allowed"),
        ('{"messages": [{"role": "user", "content": "x"}], "answer": 1e999}', "1e999 is too large"),
        ('{"messages": [{"role": "user", "content": "x"}], "answer": %s}' % ("9" * 5000), "is not valid JSON"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        (GOOD | {"tools": [{"function": {"name": ["cat"]}}]}, "tools[0].function.name"),
    ],
)
def test_a_problem_with_a_row_has_field_line_and_fix(tmp_path: Path, line: object, said: str) -> None:
    _, (problem,) = read_tasks(write(tmp_path, GOOD, line), "training_file")
    assert said in problem.message
    assert (problem.field, problem.file, problem.line) == ("training_file", "train.jsonl", 2)
    assert problem.fix


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
