"""Dataset files: every mistake is named by its line; order is seeded and resumable by row ids."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from tests.support.builders import task, tasks_of
from trainer.data.rows import RowOrder, read_tasks

GOOD = {"messages": [{"role": "user", "content": "hi"}], "reference": 1}


def write(folder: Path, *lines: object) -> Path:
    path = folder / "train.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_rows_become_tasks_and_every_other_key_stays_the_rows_own(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "cat", "parameters": {}}}
    (first, second) = tasks_of(write(tmp_path, GOOD, "", GOOD | {"tools": [tool]}))
    assert first.item["reference"] == 1
    assert second.tools == (tool,)
    assert second.row_id.startswith("3-")


def test_separators_inside_a_line_do_not_end_it(tmp_path: Path) -> None:
    row = '{"messages": [{"role": "user", "content": "a\u2028b\x85c"}]}'
    (only,) = tasks_of(write(tmp_path, row))
    assert only.messages[0]["content"] == "a\u2028b\x85c"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"messages": [', "is no JSON"),
        ("[1]", "is no JSON object"),
        ({}, "messages is missing"),
        ({"messages": []}, "messages is missing or empty"),
        ({"messages": [{"role": "usr", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "the last message is the assistant's"),
        (GOOD | {"tools": {}}, "tools is no list"),
        (GOOD | {"tools": [{"name": "cat"}]}, "tools[0].function.name"),
        (GOOD | {"tools": [{"function": {"name": "cat", "parameters": 1}}]}, "tools[0].function.parameters"),
        (GOOD | {"tools": [{"function": {"name": "cat"}}] * 2}, "same name"),
        ('{"messages": [{"role": "user", "content": "x"}], "answer": NaN}', "NaN"),
        ("[" * 100_000, "is no JSON"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "surrogates not allowed"),
        ('{"messages": [{"role": "user", "content": "x"}], "answer": 1e999}', "1e999 is too large"),
        ('{"messages": [{"role": "user", "content": "x"}], "answer": %s}' % ("9" * 5000), "is no JSON"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        (GOOD | {"tools": [{"function": {"name": ["cat"]}}]}, "tools[0].function.name"),
    ],
)
def test_a_bad_row_is_named_by_field_line_and_remedy(tmp_path: Path, line: object, said: str) -> None:
    _, (problem,) = read_tasks(write(tmp_path, GOOD, line), "training_file")
    assert said in problem.message
    assert (problem.field, problem.file, problem.line) == ("training_file", "train.jsonl", 2)
    assert problem.remedy


def test_all_bad_rows_are_found_at_once(tmp_path: Path) -> None:
    tasks, problems = read_tasks(write(tmp_path, "{", GOOD, "}", {}), "training_file")
    assert len(tasks) == 1
    assert [problem.line for problem in problems] == [1, 3, 4]


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_file_is_a_problem(tmp_path: Path, content: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(content)
    assert [problem.code for problem in read_tasks(path, "training_file")[1]] == ["empty_file"]


def test_files_that_are_missing_or_no_text_are_problems(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"{}\n\xff\xfe\x00")
    (tmp_path / "zipped").write_bytes(gzip.compress(b"0" * 10_000_000))  # nothing is ever unpacked
    (tmp_path / "utf-16").write_text("{}", encoding="utf-16")
    assert [read_tasks(tmp_path / name, "f")[1][0].code for name in ("zipped", "utf-16")] == ["unreadable_file"] * 2
    assert read_tasks(tmp_path / "none", "f")[1][0].code == "missing_file"
    assert read_tasks(tmp_path, "f")[1][0].code == "unreadable_file"
    (problem,) = read_tasks(tmp_path / "binary", "f")[1]
    assert (problem.code, problem.line) == ("unreadable_file", 2)


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert len(tasks_of(path)) == 1


def test_conversations_end_with_the_assistant(tmp_path: Path) -> None:
    path = write(tmp_path, {"messages": [*GOOD["messages"], {"role": "assistant", "content": "ho"}]}, GOOD)  # type: ignore[misc]
    tasks, problems = read_tasks(path, "training_file", conversations=True)
    assert len(tasks) == 1
    assert "end each conversation with the assistant" in problems[0].remedy


def test_each_epoch_holds_each_row_once_in_an_order_of_its_own() -> None:
    tasks = [task(str(i)) for i in range(20)]
    rows = [(epoch, t.row_id) for epoch, t in islice(RowOrder(tasks, seed=1), 60)]
    epochs = [[row for epoch, row in rows if epoch == e] for e in range(3)]
    assert all(Counter(epoch) == Counter(str(i) for i in range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert rows == [(epoch, t.row_id) for epoch, t in islice(RowOrder(tasks, seed=1), 60)]
    assert rows != [(epoch, t.row_id) for epoch, t in islice(RowOrder(tasks, seed=2), 60)]


def test_a_resumed_order_leaves_out_what_was_done() -> None:
    tasks = [task(str(i)) for i in range(10)]
    whole = [t.row_id for _, t in islice(RowOrder(tasks, seed=3), 20)]
    resumed = [t.row_id for _, t in islice(RowOrder(tasks, 3, epoch=1, done=whole[10:14]), 6)]
    assert resumed == whole[14:]
