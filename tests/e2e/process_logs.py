"""The log files of a running server: its own, those of its jobs, and those of the processes of its Ray cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

EXPECTED: dict[str, str] = {}
"""Patterns of tracebacks that are not faults, with the reason."""
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:(?:[ \t].*)?\n)*.*", re.MULTILINE)


def log_files(state: Path) -> Iterator[Path]:
    """Yield the logs of the server whose folder is `state`, and of the local Ray cluster that it runs."""
    ray = Path(json.loads((state / "cluster.json").read_text())["folder"])
    for folder, patterns in (
        (state / "logs", ("**/*",)),
        (ray, ("session_2*/logs/**/*.err", "session_2*/logs/**/*.out")),
    ):
        for pattern in patterns:
            yield from (path for path in folder.glob(pattern) if path.is_file())


def tracebacks(state: Path) -> list[str]:
    """Return the tracebacks in the logs of a server that are not EXPECTED, each with its file."""
    return [
        f"{path}: {found.group()}"
        for path in log_files(state)
        for found in _TRACEBACK.finditer(path.read_text(errors="replace"))
        if not any(re.search(pattern, found.group()) for pattern in EXPECTED)
    ]
