"""What was measured, and the page that shows it: `results.jsonl` and `RESULTS-gpu.md`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu_cluster.parts import Part, Row

HEAD = """\
# Figures on a GPU

Written by `make gpu` (`python -m benchmarks.gpu_cluster`); changes by hand are lost. Aims are ours, anchors are what
others have published, usually with other models and machines. The module of each part says what is measured and how.
"""
TABLE = "| figure | value | aim | met | anchor |\n|---|---|---|---|---|"
NOT_PRINTED = "its command ended without printing it"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(slots=True)
class Results:
    """The lines of `path`: of a figure (with `name` and `value`), or why a part has none (`not_possible`, `failed`)."""

    path: Path
    lines: list[dict[str, Any]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.path.exists():
            for text in self.path.read_text().splitlines():
                with suppress(json.JSONDecodeError):  # a line that a killed process left
                    self.lines.append(json.loads(text))

    def add(self, part: Part, line: dict[str, Any]) -> None:
        line = {"part": part.name, "command": part.command, "at": now()} | line
        self.lines.append(line)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        before = self.path.read_bytes() if self.path.exists() else b""
        with self.path.open("ab") as file:
            file.write((b"" if before.endswith(b"\n") or not before else b"\n") + json.dumps(line).encode() + b"\n")

    def figure(self, part: Part, row: Row) -> dict[str, Any] | None:
        """The last line of a figure, with the part's present command."""
        return next((line for line in self._of(part) if line.get("name") == row.name and row.field in line), None)

    def missing(self, part: Part) -> bool:
        """Whether the part has to run: figures of it are missing, or what it makes is."""
        if part.makes is not None:
            return not part.makes.exists()
        return any(self.figure(part, row) is None for row in part.rows)

    def why_not(self, part: Part) -> str:
        """Why the part's figures are missing."""
        last = next((line for line in self._of(part) if {"not_possible", "failed"} & line.keys()), None)
        if last is None:
            return "not measured" if not any(True for _ in self._of(part)) else NOT_PRINTED
        return f"not possible: {last['not_possible']}" if "not_possible" in last else f"failed: {last['failed']}"

    def _of(self, part: Part) -> Iterator[dict[str, Any]]:
        """The part's lines with its present command, last first."""
        for line in reversed(self.lines):
            if line.get("part") == part.name and line.get("command") == part.command:
                yield line


def page(results: Results, parts: Sequence[Part], machine: dict[str, str], command: str) -> str:
    """The text of RESULTS-gpu.md."""
    text = [HEAD, *(f"- {name}: {value}" for name, value in machine.items()), f"- command: `{command}`", ""]
    text += [TABLE, *(_line(results, part, row) for part in parts for row in part.rows), ""]
    gaps = {part.name: results.why_not(part) for part in parts if part.rows and results.missing(part)}
    if gaps:
        text += ["Without a value:", "", *(f"- {name}: {why}" for name, why in gaps.items()), ""]
    text += ["Commands, each with `python` before it:", ""]
    text += [f"- {part.name}: `{part.command}`" for part in parts]
    return "\n".join(text) + "\n"


def _line(results: Results, part: Part, row: Row) -> str:
    found = results.figure(part, row)
    aim = "" if row.aim is None else str(row.aim)
    name = row.name.replace("|", "\\|")
    if found is None:
        return f"| {name} | - | {aim} | | {row.anchor} |"
    value = float(found[row.field])
    met = "" if row.aim is None else "yes" if row.aim.met(value) else "no"
    return f"| {name} | {value:,.4g} {row.unit} | {aim} | {met} | {row.anchor} |"
