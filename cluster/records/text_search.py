"""String search in recorded rollouts: in the prompt, turns, calls, results, answer and reasons.

First the raw lines of the rollout files are searched. Then each matching line is parsed, and only the strings that a
client may see are searched, because a line also contains tokens, log-probabilities and responses from the operator's
network. The case of ASCII letters is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from agent_rft.cluster.records.index_tables import IndexedRollout
from agent_rft.rows.rollout_files import LinePosition, LineReader

LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


class TextSearch:
    """Search for one string in rollouts. If the rollouts of a file are passed in order, the file is read only once."""

    def __init__(self, query: str) -> None:
        self._query = _lowercase(query)
        self._encoded = json.dumps(self._query)[1:-1].encode()
        self._reader = LineReader()
        self._prompt: tuple[tuple[Path, LinePosition], bool] | None = None

    def matches(self, path: Path, rollout: IndexedRollout) -> bool:
        """Return whether the rollout, or its group's prompt, contains the string.

        Raises:
            FileNotFoundError: The file was removed.
            RewrittenFile: The file has no such line.
        """
        if self._prompt is None or self._prompt[0] != (path, rollout.group_position):
            self._prompt = (path, rollout.group_position), self._contains(path, rollout.group_position)
        return self._prompt[1] or self._contains(path, rollout.place)

    def close(self) -> None:
        self._reader.close()

    def _contains(self, path: Path, place: LinePosition) -> bool:
        line = self._reader.read_bytes(path, place)
        if self._encoded not in line.lower():  # \u00E9 is always written in lower case
            return False
        return any(self._query in _lowercase(text) for text in _visible_strings(json.loads(line)))


def _lowercase(text: str) -> str:
    return text.translate(LOWER)


def _visible_strings(line: dict[str, Any]) -> Iterator[str]:
    """Yield the strings that a client may see in one line of a rollout file."""
    if line["kind"] == "group":
        return _strings(line["task"]["messages"])
    grade = line.get("grade", {})
    return _strings([line["trace_id"], line.get("turns"), line.get("answer"), line.get("reason"), grade.get("reason")])


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
