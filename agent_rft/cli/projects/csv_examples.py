"""Reader of a CSV file of examples: each line has a question, its reference answer, and any extra fields.

The first line contains the names of the columns. The delimiter is detected, and a byte order mark is removed. Columns
are recognized only by their names, never by their values.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agent_rft.cli.projects.project_tools import MAX_PROBLEMS, raise_problems
from agent_rft.errors import Problem, UserError
from agent_rft.rows.bounded_file import decode_utf8, read_bounded

MAX_BYTES = 64 << 20
MAX_EXAMPLES = 50_000
MAX_COLUMNS = 100
MAX_FIELD_CHARS = 1_000_000
DELIMITERS = (",", ";", "\t", "|")
QUESTION = ("question", "prompt", "query", "input", "task", "instruction", "user")
REFERENCE_ANSWER = "reference_answer"
"""Key of the answer in rows, and the preferred name of the column with the answer."""
ANSWER = (REFERENCE_ANSWER, "answer", "expected", "expected_answer", "reference", "output", "target", "label")
RESERVED = ("messages", "tools")
CODE = "invalid_example"


@dataclass(frozen=True, slots=True)
class CsvExample:
    """Example in one line of a CSV file; `extra_fields` contains the values of all other columns, by name."""

    question: str
    answer: str
    extra_fields: dict[str, str]


@dataclass(slots=True)
class CsvExamples:
    """Examples in a CSV file, and the names of its columns.

    `extra_columns` are all columns except the question column and the answer column.
    """

    question_column: str
    answer_column: str
    extra_columns: tuple[str, ...]
    rows: list[CsvExample] = field(default_factory=list)
    num_repeated: int = 0
    """Number of lines that were omitted because they repeat a question with its answer."""


def read_examples(path: Path) -> CsvExamples:
    """Return the examples of a CSV file.

    Raises:
        UserError: The file cannot be read.
        InvalidJob: Columns or lines are invalid.
    """
    lines = _read_records(_read_text(path), path)
    try:
        header = [name.strip() for name in next(lines)[1]]
    except StopIteration:
        raise UserError(
            f"{path} is empty: name the columns in the first line, such as question,reference_answer"
        ) from None
    found = _parse_header(header, path)
    problems: list[Problem] = []
    first_lines: dict[str, tuple[int, str]] = {}
    for line, values in lines:
        if len(found.rows) >= MAX_EXAMPLES:
            raise UserError(
                f"{path}:{line}: the file has more than {MAX_EXAMPLES:,} examples, the limit of a job; use a part of "
                "the file"
            )
        problem = _add_example(found, dict(zip(header, values, strict=False)), len(values), line, path, first_lines)
        if problem is not None:
            problems.append(problem)
            if len(problems) > MAX_PROBLEMS:
                break
    raise_problems(f"{path} has lines that cannot become rows", problems)
    if not found.rows:
        raise UserError(f"{path} has columns but no examples: add a line for each question")
    return found


def normalize_question(question: str) -> str:
    """Return the question in lower case and with single spaces, so that repeated questions can be found."""
    return " ".join(question.casefold().split())


def _add_example(
    found: CsvExamples,
    values: dict[str, str],
    num_values: int,
    line: int,
    path: Path,
    first_lines: dict[str, tuple[int, str]],
) -> Problem | None:
    """Add the example in a line to `found`, or return a problem if the line is invalid.

    `first_lines` maps each question to (line, answer) of its first example. Repeated examples are only counted.
    """

    def make_line_problem(column: str, message: str, fix: str) -> Problem:
        return Problem(CODE, column, message, fix, str(path), line)

    num_columns = 2 + len(found.extra_columns)
    if num_values != num_columns:
        fix = "put values that contain the delimiter, a quote or a line break into double quotes"
        message = f"has {num_values} values, but the first line names {num_columns} columns"
        return make_line_problem("line", message, fix)
    question, answer = values[found.question_column].strip(), values[found.answer_column].strip()
    for column, value in ((found.question_column, question), (found.answer_column, answer)):
        if not value:
            return make_line_problem(column, "is empty", "give a value, or remove the line")
    if (key := normalize_question(question)) in first_lines:
        before, same = first_lines[key]
        if same != answer:
            message = f"the same question has a different answer at line {before}"
            fix = "keep only the line with the correct answer, because the model cannot give both answers"
            return make_line_problem(found.answer_column, message, fix)
        found.num_repeated += 1
        return None
    first_lines[key] = line, answer
    found.rows.append(CsvExample(question, answer, {name: values[name] for name in found.extra_columns}))
    return None


def _read_text(path: Path) -> str:
    content = read_bounded(path, MAX_BYTES, "use a part of the file, or write the rows yourself")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{path} is UTF-16: save the file as UTF-8 (in a spreadsheet: CSV UTF-8)")
    return decode_utf8(content, str(path), "save the file as UTF-8 (in a spreadsheet: CSV UTF-8)")


def _detect_delimiter(text: str) -> str:
    """Return the most frequent delimiter in the first line."""
    header = text.lstrip("\r\n").split("\n", 1)[0]
    return max(DELIMITERS, key=header.count)


def _read_records(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, values) for each record of a CSV text; empty records are skipped."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_detect_delimiter(text), strict=True)
    limit, line = csv.field_size_limit(MAX_FIELD_CHARS), 1
    try:
        for values in reader:
            if any(value.strip() for value in values):
                yield line, values
            line = reader.line_num + 1
    except csv.Error as error:
        fix = "double each quote inside a quoted value, and close each quoted value"
        raise UserError(f"{path}:{line} is not CSV: {error}; {fix}") from None
    finally:
        csv.field_size_limit(limit)


def _parse_header(header: list[str], path: Path) -> CsvExamples:
    """Return an empty `CsvExamples` with the names of the columns in `header`.

    Raises:
        InvalidJob: A column is missing, unnamed or duplicated.
    """

    def refuse_column(column: str, message: str, fix: str) -> None:
        raise_problems(f"{path} has columns that cannot be used", [Problem(CODE, column, message, fix, str(path), 1)])

    shown = ", ".join(repr(name[:40]) for name in header[:10])
    if len(header) == 1:
        fix = "name two columns in the first line, separated by a comma, such as question,reference_answer"
        refuse_column("columns", f"the file has only one column: {shown}", fix)
    if len(header) > MAX_COLUMNS:
        refuse_column("columns", f"the file has {len(header)} columns", f"keep at most {MAX_COLUMNS}")
    for i, name in enumerate(header):
        if not name:
            refuse_column("columns", f"column {i + 1} has no name", "give the column a name in the first line")
        if name in header[:i]:
            refuse_column(name, "is the name of two columns", "give each column a different name")
        if name in RESERVED:
            refuse_column(name, "is reserved: agent-rft init writes this key into rows", "rename the column")
    lower = {name.lower().replace(" ", "_"): name for name in reversed(header)}
    taken = []
    for key, names in (("question", QUESTION), (REFERENCE_ANSWER, ANSWER)):
        column = next((lower[name] for name in names if name in lower), None)
        if column is None:
            others = ", ".join(name for name in names if name != key)
            message = f"no column has this name (or {others}); the columns are {shown}"
            refuse_column(key, message, "rename a column in the first line, which must contain names, not values")
        taken.append(str(column))
    own = tuple(name for name in header if name not in taken)
    if REFERENCE_ANSWER in own:
        message = f"has the same meaning as the column {taken[1]!r}"
        refuse_column(REFERENCE_ANSWER, message, "remove or rename one of the two columns")
    return CsvExamples(taken[0], taken[1], own)
