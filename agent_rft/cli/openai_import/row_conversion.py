"""Conversion of rows from OpenAI's chat format to agent-rft's format, with one line in memory at a time.

The text parts of a message are joined into one string. Unsupported content (images, audio, files, legacy functions) is
reported with its line number; no row is skipped silently.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from agent_rft.chat.message_schema import TEXT_PARTS, join_texts
from agent_rft.errors import Problem, UserError
from agent_rft.rows.dataset_rows import parse_row
from agent_rft.rows.row_schema import RowError, read_conversation, unwrap_item

MAX_LINE_BYTES = 32 << 20
MAX_PROBLEMS = 1_000
"""Maximum number of problems per file; after this number of problems, the rest of the file is not read."""
HINT = "correct a copy of the file, and give the copy with --{option}"


@dataclass(slots=True)
class ConvertedRows:
    """Result of the conversion of a file of rows: counts and problems."""

    num_rows: int = 0
    num_joined: int = 0
    """Rows in which text parts were joined."""
    num_developer: int = 0
    """Rows with a developer message."""
    longest_bytes: int = 0
    has_tools: bool = False
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ImportedRowLocation:
    """Location of a row, for error messages. `field` is a setting of the job, such as training_file."""

    field: str
    file: str
    line: int


def convert_rows(source: Path, target: Path, name: str, source_name: str, *, is_supervised: bool) -> ConvertedRows:
    """Convert the rows of `source` and write them to `target`.

    Args:
        source: File in OpenAI's format.
        target: File to write.
        name: Setting of the job that names the file, such as training_file.
        source_name: Name of `source` in messages.
        is_supervised: Whether the rows belong to a supervised job.

    Raises:
        UserError: A file cannot be read or written.
    """
    found = ConvertedRows()
    try:
        with source.open("rb") as rows, target.open("w", encoding="utf-8") as out:
            number = 0
            while (line := rows.readline(MAX_LINE_BYTES + 1)) and len(found.problems) < MAX_PROBLEMS:
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    _skip_line(rows, line)
                text = _convert_line(
                    line, ImportedRowLocation(name, source_name, number), found, is_supervised=is_supervised
                )
                if text is not None:
                    out.write(text + "\n")
    except OSError as error:
        raise UserError(f"{error.filename or source} cannot be read or written: {error.strerror}") from None
    if not found.num_rows and not found.problems:
        found.problems.append(
            Problem("empty_file", name, "has no rows", HINT.format(option=name.replace("_", "-")), source_name)
        )
    return found


def _skip_line(rows: BinaryIO, line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = rows.readline(MAX_LINE_BYTES)


def _convert_line(line: bytes, at: ImportedRowLocation, found: ConvertedRows, *, is_supervised: bool) -> str | None:
    """Return the converted row as a line; None if the line is empty or has a problem."""

    def problem(code: str, message: str, fix: str) -> None:
        found.problems.append(Problem(code, at.field, message, fix, at.file, at.line))

    fix = HINT.format(option=at.field.replace("_", "-"))
    if len(line) > MAX_LINE_BYTES:
        problem("invalid_row", f"the row is larger than {MAX_LINE_BYTES:,} bytes", fix)
        return None
    try:
        text = line.decode("utf-8-sig" if at.line == 1 else "utf-8").strip()
        if not text:
            return None
        row = unwrap_item(parse_row(text).value)
    except ValueError as error:
        why = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"is not valid JSON: {error}"
        problem("broken_json", why, fix)
        return None
    is_changed = _join_texts(row)
    if (unsupported := _find_unsupported(row)) is not None:
        problem("unsupported_row", unsupported, fix)
        return None
    if isinstance(conversation := read_conversation(row, is_supervised), RowError):
        problem("invalid_row", conversation.message, f"{conversation.fix}; {fix}")
        return None
    found.num_rows += 1
    found.num_joined += is_changed
    found.num_developer += any(message["role"] == "developer" for message in row["messages"])
    found.longest_bytes = max(found.longest_bytes, len(line))
    found.has_tools |= bool(row.get("tools"))
    return json.dumps(row, ensure_ascii=False) if is_changed else text


def _messages(row: Any) -> list[Any]:
    messages = row.get("messages") if isinstance(row, dict) else None
    return [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []


def _join_texts(row: Any) -> bool:
    """Join the text parts of each message into one string. Return whether a message was changed."""
    changed = False
    for message in _messages(row):
        content = message.get("content")
        if isinstance(content, list) and content and all(_is_text(part) for part in content):
            message["content"] = join_texts(part["text"] for part in content)
            changed = True
    return changed


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in TEXT_PARTS and isinstance(part.get("text"), str)


def _find_unsupported(row: Any) -> str | None:
    """Return a description of unsupported content in the row; None if all content is supported."""
    for i, message in enumerate(_messages(row)):
        content = message.get("content")
        for j, part in enumerate(content if isinstance(content, list) else []):
            if not _is_text(part):
                kind = part.get("type") if isinstance(part, dict) else None
                return f"messages[{i}].content[{j}] has the type {str(kind)[:40]!r}; only text is supported"
        if message.get("function_call"):
            return f"messages[{i}].function_call is not supported, because it is the legacy format of tool_calls"
    if isinstance(row, dict) and row.get("functions"):
        return "`functions` is not supported, because it is the legacy format of `tools`"
    return None
