"""Figures, and the file that holds the measured ones. Without torch: the parent process uses it too."""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: `measure` returns its value and further fields of its line.

    `takes_s` is the estimated duration on an H100: a figure is not started if less time is left. `limit_s` is when its
    process is ended (None: no limit). `aim` is our target, `anchor` what others have published.
    """

    name: str
    unit: str
    measure: Callable[[], Mapping[str, Any]]
    takes_s: float = 20.0
    aim: str = ""
    anchor: str = ""
    limit_s: float | None = None


class NotMeasured(Exception):
    """A figure that cannot exist on this machine, with the reason."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Context manager that ends the process with a traceback if it is still open after `seconds`; None: no limit.

    A thread of C does this, so it also works while a kernel or a collective hangs.
    """
    if seconds is not None:
        faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


class Results:
    """The lines of `results.jsonl` in a folder. A figure that was measured again has its last line."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "results.jsonl"
        self._running = folder / "running"
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def lines(self) -> dict[str, Line]:
        if not self._file.exists():
            return {}
        lines = {}
        for text in self._file.read_text().splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue  # the process was killed while it wrote
            lines[line["name"]] = line
        return lines

    def value(self, name: str) -> float | None:
        value: float | None = self.lines.get(name, {}).get("value")
        return value

    def start(self, line: Line) -> None:
        """Note the figure that is being measured, in case the process dies."""
        self._running.write_text(json.dumps(line))

    def add(self, line: Line) -> None:
        with self._file.open("a+") as file:
            if file.tell() and not self._file.read_bytes().endswith(b"\n"):
                file.write("\n")
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._running.unlink(missing_ok=True)

    def drop_failed(self) -> None:
        """Forget the figures that have no value, so that they are measured again."""
        lines = [line for line in self.lines.values() if line.get("value") is not None]
        new = self._file.with_suffix(".new")
        new.write_text("".join(json.dumps(line) + "\n" for line in lines))
        new.replace(self._file)

    def lost(self) -> Line | None:
        """The figure that a process was measuring when it died."""
        if not self._running.exists():
            return None
        line: Line = json.loads(self._running.read_text())
        return line


def table(lines: Mapping[str, Line]) -> str:
    """A table in Markdown of all figures with their aims and anchors."""
    rows = ["| figure | value | baseline | more | aim | anchor |", "|---|---|---|---|---|---|"]
    for name, line in lines.items():
        problem = line.get("not_measured") or line.get("error")
        value = problem or f"{_short(line['value'])} {line['unit']}"
        baseline = "" if line.get("baseline") is None else _short(line["baseline"])
        more = ", ".join(f"{key} {_short(number)}" for key, number in line.get("more", {}).items())
        rows.append(f"| {name} | {value} | {baseline} | {more} | {line.get('aim', '')} | {line.get('anchor', '')} |")
    return "\n".join(rows)


def _short(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
