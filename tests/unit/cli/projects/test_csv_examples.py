"""CSV files of examples, and how rows are split."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_rft.cli.projects.csv_examples import MAX_FIELD_CHARS, CsvExample, CsvExamples, read_examples
from agent_rft.cli.projects.project_rows import generate_rows, make_rows, split_rows
from agent_rft.cli.projects.project_tools import ProjectTool
from agent_rft.errors import UserError
from agent_rft.spec.schemas.json_schema import SchemaValidator


def read(folder: Path, content: str | bytes) -> CsvExamples:
    path = folder / "questions.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_examples(path)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_columns_are_found_by_name_whatever_the_delimiter(tmp_path: Path, delimiter: str, mark: bytes) -> None:
    lines = ['Expected;kind;"Question"', '2;easy;"What is\n1 + 1?"', "", '"4; or four";easy; What is 2 + 2? ']
    content = mark + "\r\n".join(line.replace(";", delimiter) for line in lines).encode()
    found = read(tmp_path, content)
    assert (found.question_column, found.answer_column, found.extra_columns) == ("Question", "Expected", ("kind",))
    four = f"4{delimiter} or four"
    assert found.rows == [
        CsvExample("What is\n1 + 1?", "2", {"kind": "easy"}),
        CsvExample("What is 2 + 2?", four, {"kind": "easy"}),
    ]


def test_a_repeated_line_is_left_out_and_counted(tmp_path: Path) -> None:
    found = read(tmp_path, "question,answer\nWhat?,1\nwhat?  ,1\nWho?,1\n")
    assert (len(found.rows), found.num_repeated) == (2, 1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty: name the columns"),
        ("question,answer\n\n", "has columns but no examples: add a line"),
        (
            "question\nWhat?\n",
            r"columns \(.*questions.csv:1\): the file has only one column: 'question'.*\n.*separated by a comma",
        ),
        ("What is 1 + 1?,2\n", r"question \(.*:1\): no column has this name .*the columns are 'What is 1 \+ 1\?', '2'"),
        ("question,b\nWhat?,2\n", r"reference_answer \(.*:1\): no column has this name \(or answer"),
        ("question,answer,\nWhat?,2,\n", r"column 3 has no name"),
        ("question,answer,a,a\n", r"a \(.*:1\): is the name of two columns"),
        (
            "question,Reference Answer,reference_answer\n",
            r"reference_answer \(.*:1\): .*the column 'Reference Answer'.*\n.*remove or rename one of",
        ),
        ("question,answer,tools\n", r"tools \(.*:1\): is reserved: .*\n.*rename the column"),
        (
            "question,answer\nWhat?,2\nWho?,a,b\n",
            r"line \(.*:3\): has 3 values, but the first line names 2 columns.*\n.*double quotes",
        ),
        ('question,answer\n"a\nb",2\n,3\n', r"question \(.*:4\): is empty"),
        ("question,answer\nWhat?, \n", r"answer \(.*:2\): is empty"),
        ("question,answer\nWhat?,2\nWHAT?,3\n", r"answer \(.*:3\): the same question has a different answer at line 2"),
        ('question,answer\n"What?,2\n', r"questions.csv:2 is not CSV: .*close each quoted value"),
        ("question,answer\nWhat?," + "x" * (MAX_FIELD_CHARS + 1), r"questions.csv:2 is not CSV: field larger"),
        ("question,answer".encode("utf-16"), r"is UTF-16: save the file as UTF-8"),
        ("question,answer\nö,1\n".encode("latin-1"), r"questions.csv:2 is not UTF-8 text"),
        ("question,answer\n" + "x,\n" * 100, r"cannot become rows \(1 more are not shown\)"),
        (",".join(["question", "answer", *map(str, range(99))]) + "\n", r"the file has 101 columns"),
    ],
)
def test_what_is_no_example_is_named_with_line_and_fix(tmp_path: Path, content: str | bytes, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read(tmp_path, content)


def test_a_file_is_bounded(tmp_path: Path) -> None:
    with (path := tmp_path / "huge.csv").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(UserError, match="larger than 67,108,864 bytes"):
        read_examples(path)
    many = "question,answer\n" + "".join(f"{i},1\n" for i in range(50_001))
    with pytest.raises(UserError, match=r"questions.csv:50002: the file has more than 50,000 examples"):
        read(tmp_path, many)


@pytest.mark.parametrize("num_rows", [3, 4, 10, 30, 100, 2_000])
def test_rows_are_split_three_ways_without_a_row_in_two_files(num_rows: int) -> None:
    rows = [{"n": i} for i in range(num_rows)]
    files = split_rows(rows)
    assert len(files["test"]) == max(1, min(300, num_rows // 5))
    assert len(files["validation"]) == max(1, min(100, num_rows // 10))
    assert sorted(row["n"] for part in files.values() for row in part) == list(range(num_rows))
    assert split_rows(rows) == files, "the same every time"
    assert num_rows < 100 or files["train"][0] != rows[0], "mixed"


def test_rows_of_one_group_stay_together() -> None:
    rows = [{"n": i, "group": f"customer {i % 7}"} for i in range(70)]
    files = split_rows(rows)
    groups = [{row["group"] for row in part} for part in files.values()]
    assert all(groups) and sum(map(len, groups)) == 7
    with pytest.raises(UserError, match="only 2 different values of 'group'"):
        split_rows([{"group": i % 2} for i in range(10)])
    with pytest.raises(
        UserError, match="only 2 different examples: give at least three, one each for training, validation and test"
    ):
        split_rows([{}, {}])


NUMBER = {"type": "integer", "minimum": 3}
ADD = ProjectTool("add", "Adds.", {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]})
NOW = ProjectTool("now", "", {"type": "object", "properties": {}, "additionalProperties": False})
DELETE = ProjectTool("delete", "", {"type": "object", "properties": {}}, may_change_data=True)


def test_made_up_rows_ask_for_calls_that_the_schema_allows_and_that_change_nothing() -> None:
    rows = generate_rows([ADD, NOW, DELETE], "Be short.")
    questions = [row["messages"][-1]["content"] for row in rows]
    assert len(set(questions)) == len(rows) == 30
    for row in rows:
        assert row["messages"][0] == {"role": "system", "content": "Be short."}
        assert [tool["function"]["name"] for tool in row["tools"]] == ["add", "now", "delete"]
        call = row["expected_call"]
        assert call["name"] in ("add", "now")
        if call["name"] == "add":
            assert SchemaValidator(ADD.parameters).find_violation(call["arguments"]) is None
            assert f"a = {call['arguments']['a']}" in row["messages"][-1]["content"]
    assert len(generate_rows([NOW], "")) >= 3, "enough for three files"
    assert {row["expected_call"]["name"] for row in generate_rows([DELETE], "")} == {"delete"}


def test_an_examples_row_has_question_answer_and_its_own_keys() -> None:
    (row,) = make_rows([CsvExample("What?", "2", {"kind": "easy"})], [], "")
    assert row == {"messages": [{"role": "user", "content": "What?"}], "reference_answer": "2", "kind": "easy"}
    (row,) = make_rows([CsvExample("What?", "2", {"reference_answer": "3"})], [], "")
    assert row["reference_answer"] == "2", "the chosen column's"
