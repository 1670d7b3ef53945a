"""Dataset files: JSONL -> tasks, each mistake named by its line; and the order in which rows are trained.

A row's id is its line number and a digest of its content: a resumed job knows its rows even in a file that has grown.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer.errors import Problem
from trainer.types import Task

ROLES = ("developer", "system", "user", "assistant", "tool")


def read_tasks(path: Path, field: str, *, conversations: bool = False) -> tuple[list[Task], list[Problem]]:
    """Rows of section 6 of the wire contract (with `conversations`, whole ones for supervised training), and a problem
    for each bad line.
    """

    def problem(code: str, line: int | None, message: str, remedy: str) -> Problem:
        return Problem(code, field, message, remedy, path.name, line)

    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return [], [
            problem("missing_file", None, f"there is no file {path}", "mend the path (it counts from the job file)")
        ]
    except UnicodeDecodeError as error:
        bad = error.object[: error.start].count(b"\n") + 1
        return [], [problem("unreadable_file", bad, f"is no UTF-8 text: {error.reason}", "save the file as UTF-8 text")]
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        return [], [problem("unreadable_file", None, message, "give a file that this user may read")]
    tasks: list[Task] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, parse_constant=_refuse, parse_float=_finite)
            if "\\u" in line:  # an escape may be half of a character, which is no text
                json.dumps(row, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            why = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
            problems.append(problem("broken_json", number, f"is no JSON: {why}", "write one JSON object a line"))
            continue
        mistake = _row_mistake(row, conversations)
        if mistake is not None:
            problems.append(problem("invalid_row", number, *mistake))
            continue
        digest = hashlib.blake2b(line.strip().encode(), digest_size=4).hexdigest()
        tasks.append(Task(f"{number}-{digest}", tuple(row["messages"]), tuple(row.get("tools") or ()), row))
    if not tasks and not problems:
        problems.append(problem("empty_file", None, "holds no row", "write at least one JSON object a line"))
    return tasks, problems


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is a word of Python's that no endpoint could be sent")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def _row_mistake(row: Any, conversations: bool) -> tuple[str, str] | None:
    """What is wrong with a row and what to do, or None."""
    if not isinstance(row, dict):
        return "is no JSON object", "write an object with `messages`"
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        return "messages is missing or empty", 'add "messages": [{"role": "user", "content": "..."}]'
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            return f"messages[{i}].role is none of {', '.join(ROLES)}", "give each message a role"
        content = message.get("content")
        if not isinstance(content, str) and not (message["role"] == "assistant" and message.get("tool_calls")):
            return f"messages[{i}].content is no text", "give each message a text as content"
    last = messages[-1]["role"]
    if conversations and last != "assistant":
        return f"the last message is the {last}'s", "end each conversation with the assistant's answer"
    if not conversations and last != "user":
        return f"the last message is the {last}'s", "end messages with the user's: the model goes on from there"
    tools = row.get("tools")
    if tools is not None and not isinstance(tools, list):
        return "tools is no list", "give a list of function tools, or leave it out"
    for i, tool in enumerate(tools or []):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return f"tools[{i}].function.name is missing", 'write {"type": "function", "function": {"name": ...}}'
        if not isinstance(function.get("parameters", {}), dict):
            return f"tools[{i}].function.parameters is no JSON schema", "give an object"
    names = [tool["function"]["name"] for tool in tools or []]
    if len(set(names)) < len(names):
        return "two of its tools have the same name", "give each tool a name of its own"
    return None


class RowOrder:
    """Rows epoch after epoch, shuffled by (seed, epoch). `done` rows of the first epoch are left out (on resuming)."""

    def __init__(self, tasks: Sequence[Task], seed: int, epoch: int = 0, done: Sequence[str] = ()) -> None:
        self._tasks = list(tasks)
        self._seed = seed
        self._first_epoch = epoch
        self._done = set(done)

    def __iter__(self) -> Iterator[tuple[int, Task]]:
        """(epoch, task) without end."""
        epoch, done = self._first_epoch, self._done
        while True:
            tasks = list(self._tasks)
            random.Random(f"{self._seed}:{epoch}").shuffle(tasks)
            for task in tasks:
                if task.row_id not in done:
                    yield epoch, task
            epoch, done = epoch + 1, set()
