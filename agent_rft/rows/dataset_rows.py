"""Dataset files (JSONL): conversion of rows to tasks, errors by line, and the training order of rows.

The id of a row is its line number and a digest of its content. A resumed job therefore recognizes its rows even if
lines were appended to the file.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from agent_rft.errors import Problem
from agent_rft.rows.row_schema import RowError, read_conversation, to_chat_tool, unwrap_item
from agent_rft.rows.strict_json import MAX_SHOWN_CHARS, ParsedJson, parse_json
from agent_rft.types import Task

MAX_RANGES = 20


def read_tasks(path: Path, field: str, *, is_supervised: bool = False) -> tuple[list[Task], list[Problem]]:
    """Return the rows of a dataset in OpenAI's chat format as tasks, and a problem for each invalid line.

    Each row must end with a user message or, if the job is supervised, with an assistant message. `field` is the
    setting that names the file; problems refer to it. Duplicate keys are problems too, but their rows are returned.
    """

    def create_problem(code: str, line: int | None, message: str, fix: str) -> Problem:
        return Problem(code, field, message, fix, path.name, line)

    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return [], [
            create_problem(
                "missing_file", None, f"the file {path} does not exist", "fix the path (it is relative to the job file)"
            )
        ]
    except UnicodeDecodeError as error:
        bad = error.object[: error.start].count(b"\n") + 1
        return [], [
            create_problem("unreadable_file", bad, f"is not UTF-8 text: {error.reason}", "save the file as UTF-8")
        ]
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        return [], [create_problem("unreadable_file", None, message, "make the file readable for this user")]
    if text[:1000].lstrip().startswith("["):
        message = "is a JSON array, not one JSON object per line"
        fix = "write each element on a separate line, for example: jq -c '.[]' rows.json > rows.jsonl"
        return [], [create_problem("json_array", None, message, fix)]
    tasks: list[Task] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row, duplicate_keys, _ = parse_row(line)
        except ValueError as error:
            problems.append(
                create_problem("broken_json", number, f"is not valid JSON: {error}", "write one JSON object per line")
            )
            continue
        row = unwrap_item(row)
        conversation = read_conversation(row, is_supervised)
        if isinstance(conversation, RowError):
            problems.append(create_problem("invalid_row", number, *conversation))
            continue
        for key in duplicate_keys:
            message = f"the key {key[:MAX_SHOWN_CHARS]!r} is duplicated in an object, and only its last value counts"
            problems.append(create_problem("duplicate_row_key", number, message, "remove all but one"))
        digest = hashlib.blake2b(line.strip().encode(), digest_size=4).hexdigest()
        tools = tuple(map(to_chat_tool, row.get("tools") or ()))
        tasks.append(Task(f"{number}-{digest}", conversation, tools, row))
    if not tasks and not problems:
        problems.append(create_problem("empty_file", None, "has no rows", "write one JSON object per line"))
    return tasks, problems


def format_ranges(lines: Iterable[int]) -> str:
    """Return line numbers as human-readable ranges, at most MAX_RANGES of them: [1, 2, 3, 5] -> "1-3, 5"."""
    ranges: list[list[int]] = []
    for line in sorted(set(lines)):
        if ranges and line == ranges[-1][1] + 1:
            ranges[-1][1] = line
        else:
            ranges.append([line, line])
    shown = [f"{first}-{last}" if last > first else str(first) for first, last in ranges[:MAX_RANGES]]
    more = sum(last - first + 1 for first, last in ranges[MAX_RANGES:])
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def parse_row(line: str) -> ParsedJson:
    """Parse the JSON value of a line.

    Raises:
        ValueError: The line is not valid JSON, or contains a value that graders and tools could not receive, such as
            NaN. The message has the reason.
    """
    row = parse_json(line)
    if "\\u" in line:  # an escape may be a lone surrogate, which cannot be encoded
        try:
            json.dumps(row.value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start : error.end].encode("unicode_escape").decode()[:MAX_SHOWN_CHARS]
            raise ValueError(f"{half} is half of a surrogate pair; write complete characters") from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
    return row


class RowOrder:
    """Endless sequence of rows in training order.

    The rows are repeated in epochs. Each epoch is shuffled; the order depends only on `seed` and the number of the
    epoch. A resumed job starts in epoch `epoch`, and skips the rows of this epoch whose ids are in `done`.
    """

    def __init__(self, tasks: Sequence[Task], seed: int, epoch: int = 0, done: Sequence[str] = ()) -> None:
        self._tasks = list(tasks)
        self._seed = seed
        self._first_epoch = epoch
        self._done = set(done)

    def __iter__(self) -> Iterator[tuple[int, Task]]:
        """Yield (epoch, task) endlessly."""
        epoch, done = self._first_epoch, self._done
        while True:
            tasks = list(self._tasks)
            random.Random(f"{self._seed}:{epoch}").shuffle(tasks)
            for task in tasks:
                if task.row_id not in done:
                    yield epoch, task
            epoch, done = epoch + 1, set()
