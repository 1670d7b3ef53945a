"""Finds a text in recorded rollouts: in the prompt, turns, calls, results, answer and reasons.

Lines are searched as they are in the file, and only those that may have the text are parsed: tokens and
log-probabilities are in the line too, and what an endpoint of the operator's network said must not reach a client.
Of ASCII letters the case does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from agent_rft.cluster.records.index_tables import Found
from agent_rft.rows.rollout_files import LineReader, Place

LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


class TextSearch:
    """Searches rollouts of known places; those of a file in their order are read once."""

    def __init__(self, wanted: str) -> None:
        self._wanted = _lower(wanted)
        self._written = json.dumps(self._wanted)[1:-1].encode()
        self._reader = LineReader()
        self._prompt: tuple[tuple[Path, Place], bool] | None = None

    def finds(self, path: Path, one: Found) -> bool:
        """Whether the rollout, or its group's prompt, has the text.

        Raises:
            FileNotFoundError: The file is gone.
            OtherFile: The file has no such line.
        """
        if self._prompt is None or self._prompt[0] != (path, one.group):
            self._prompt = (path, one.group), self._is_in(path, one.group)
        return self._prompt[1] or self._is_in(path, one.place)

    def close(self) -> None:
        self._reader.close()

    def _is_in(self, path: Path, place: Place) -> bool:
        line = self._reader.text(path, place)
        if self._written not in line.lower():  # \u00E9 is always written in lower case
            return False
        return any(self._wanted in _lower(text) for text in _shown(json.loads(line)))


def _lower(text: str) -> str:
    return text.translate(LOWER)


def _shown(line: dict[str, Any]) -> Iterator[str]:
    """The texts of a line that its reader is shown."""
    if line["kind"] == "group":
        return _texts(line["task"]["messages"])
    grade = line.get("grade", {})
    return _texts([line["trace_id"], line.get("turns"), line.get("answer"), line.get("reason"), grade.get("reason")])


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
