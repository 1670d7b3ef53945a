"""Rows of an example's files, and the turns of the conversations for its warm start."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def turn(
    calls: Iterable[tuple[str, Mapping[str, Any], str]], *, prefix: str = "call_", first: int = 0
) -> list[dict[str, Any]]:
    """A turn of the model that makes these calls at once, and their results.

    Each call is a tool's name, its arguments and its output; their ids are `prefix` and a number from `first` on.
    """
    made, results = list[dict[str, Any]](), list[dict[str, Any]]()
    for number, (name, arguments, output) in enumerate(calls, start=first):
        function = {"name": name, "arguments": json.dumps(arguments)}
        made.append({"id": f"{prefix}{number}", "type": "function", "function": function})
        results.append({"role": "tool", "tool_call_id": f"{prefix}{number}", "content": output})
    return [{"role": "assistant", "content": None, "tool_calls": made}, *results]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSONL file; its folder is created if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
