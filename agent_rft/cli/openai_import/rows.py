"""Rows of OpenAI's chat format, line by line, into rows of ours: one line in memory at a time.

Texts in parts become one text. What cannot be trained here (images, audio, files, functions of the older form) is
reported with its line; nothing is left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from agent_rft.errors import Problem, UserError
from agent_rft.rows.rows import parse_row, row_mistake

MAX_LINE_BYTES = 32 << 20
MAX_PROBLEMS = 1_000
"""Problems after which the rest of a file is not read."""
TEXT_PARTS = ("text", "input_text", "output_text")
REMEDY = "correct this in a copy of the file, and give that with --{option}"


@dataclass(slots=True)
class Converted:
    """What was found in a file of rows."""

    num_rows: int = 0
    num_joined: int = 0
    """Rows whose texts were in parts."""
    num_unweighted: int = 0
    """Rows with an assistant's message of weight 0."""
    longest_bytes: int = 0
    has_tools: bool = False
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Place:
    """The job's field, the file and the line of a row."""

    field: str
    file: str
    line: int


def convert(source: Path, target: Path, name: str, shown: str, *, conversations: bool) -> Converted:
    """Writes the rows of `source`, which is the job's file `name`, to `target`.

    `shown` names `source` in messages. `conversations`: the rows are those of a supervised job.

    Raises:
        UserError: A file cannot be read or written.
    """
    found = Converted()
    try:
        with source.open("rb") as rows, target.open("w", encoding="utf-8") as out:
            number = 0
            while (line := rows.readline(MAX_LINE_BYTES + 1)) and len(found.problems) < MAX_PROBLEMS:
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    _skip_line(rows, line)
                text = _converted(line, Place(name, shown, number), found, conversations=conversations)
                if text is not None:
                    out.write(text + "\n")
    except OSError as error:
        raise UserError(f"{error.filename or source} cannot be read or written: {error.strerror}") from None
    if not found.num_rows and not found.problems:
        found.problems.append(
            Problem("empty_file", name, "has no rows", REMEDY.format(option=name.replace("_", "-")), shown)
        )
    return found


def _skip_line(rows: BinaryIO, line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = rows.readline(MAX_LINE_BYTES)


def _converted(line: bytes, at: Place, found: Converted, *, conversations: bool) -> str | None:
    """The row as a line of ours; None if it is empty or has a problem."""

    def problem(code: str, message: str, remedy: str) -> None:
        found.problems.append(Problem(code, at.field, message, remedy, at.file, at.line))

    remedy = REMEDY.format(option=at.field.replace("_", "-"))
    if len(line) > MAX_LINE_BYTES:
        problem("invalid_row", f"the row is larger than {MAX_LINE_BYTES:,} bytes", remedy)
        return None
    try:
        text = line.decode("utf-8-sig" if at.line == 1 else "utf-8").strip()
        if not text:
            return None
        row = parse_row(text)
    except ValueError as error:
        why = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"is not valid JSON: {error}"
        problem("broken_json", why, remedy)
        return None
    is_changed = _join_texts(row)
    if (unsupported := _unsupported(row)) is not None:
        problem("unsupported_row", unsupported, remedy)
        return None
    if (mistake := row_mistake(row, conversations)) is not None:
        problem("invalid_row", mistake[0], f"{mistake[1]}; {remedy}")
        return None
    found.num_rows += 1
    found.num_joined += is_changed
    found.num_unweighted += any(message.get("weight") == 0 for message in row["messages"])
    found.longest_bytes = max(found.longest_bytes, len(line))
    found.has_tools |= bool(row.get("tools"))
    return json.dumps(row, ensure_ascii=False) if is_changed else text


def _messages(row: Any) -> list[Any]:
    messages = row.get("messages") if isinstance(row, dict) else None
    return [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []


def _join_texts(row: Any) -> bool:
    """Make each content that consists of text parts one text; whether there was one."""
    changed = False
    for message in _messages(row):
        content = message.get("content")
        if isinstance(content, list) and content and all(_is_text(part) for part in content):
            message["content"] = "\n".join(part["text"] for part in content)
            changed = True
    return changed


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in TEXT_PARTS and isinstance(part.get("text"), str)


def _unsupported(row: Any) -> str | None:
    """What in the row has no counterpart here, or None."""
    for i, message in enumerate(_messages(row)):
        content = message.get("content")
        for j, part in enumerate(content if isinstance(content, list) else []):
            if not _is_text(part):
                kind = part.get("type") if isinstance(part, dict) else None
                return f"messages[{i}].content[{j}] is {str(kind)[:40]!r}: only text can be trained here"
        if message.get("function_call"):
            return f"messages[{i}].function_call is the older form of tool_calls, which is not here"
    if isinstance(row, dict) and row.get("functions"):
        return "functions is the older form of tools, which is not here"
    return None
