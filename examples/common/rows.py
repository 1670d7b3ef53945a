"""Rows of an example's files, and turns of conversations for its SFT warm-up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def turn(
    calls: Iterable[tuple[str, Mapping[str, Any], str]], *, prefix: str = "call_", first: int = 0
) -> list[dict[str, Any]]:
    """Return the messages of one turn: the model's concurrent tool calls, and their results.

    Each call is (tool name, arguments, output). The ids of the calls are `prefix` and a number, counted from `first`.
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
