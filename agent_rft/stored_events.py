"""Stored events: an envelope with job, step, time and message, and the codec of its JSON line.

An event of a later version cannot be decoded, and keeps its stored level and message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, get_type_hints

from agent_rft.events import KINDS, Event, Level
from agent_rft.types import Evaluation


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event of a job as it is stored and shown. `time` is in Unix seconds; `message` is a human-readable sentence.

    `event` is None if this program does not support `kind` and `version`, because a later version wrote the event. Use
    `level`, `message` and `data` instead.
    """

    job: str
    step: int
    time: float
    level: Level
    message: str
    kind: str
    version: int
    data: dict[str, Any]
    event: Event | None = None

    def to_line(self) -> dict[str, Any]:
        """Return the event as a line of events.jsonl; `time` is ISO 8601 in UTC."""
        return {
            "time": datetime.fromtimestamp(self.time, UTC).isoformat(timespec="milliseconds"),
            "level": self.level,
            "kind": self.kind,
            "version": self.version,
            "job": self.job,
            "step": self.step,
            "message": self.message,
            "data": self.data,
        }

    @classmethod
    def from_line(cls, line: dict[str, Any]) -> RunEvent:
        """Return the event of a line of events.jsonl."""
        time = datetime.fromisoformat(line["time"]).timestamp()
        shown = line["level"], line["message"]
        return load_run_event(line["job"], line["step"], time, *shown, line["kind"], line["version"], line["data"])


def to_event_data(event: Event) -> dict[str, Any]:
    """Return the event's fields as JSON values, without `step`, which is in the envelope."""
    data = asdict(event)
    del data["step"]
    return data


def load_run_event(
    job: str, step: int, time: float, level: Level, message: str, kind: str, version: int, data: dict[str, Any]
) -> RunEvent:
    """Return a RunEvent from its stored fields, with the event decoded."""
    return RunEvent(job, step, time, level, message, kind, version, data, decode_event(kind, version, data, step))


def parse_evaluation(data: Mapping[str, Any]) -> Evaluation:
    """Return the evaluation with this `as_dict`; null stands for a number that was not finite.

    Raises:
        TypeError: A field is missing.
    """
    values: dict[str, Any] = {f.name: data[f.name] for f in fields(Evaluation) if f.name in data}
    finite: dict[str, Any] = {name: math.nan if number is None else number for name, number in values.items()}
    finite["intervals"] = {name: tuple(bounds) for name, bounds in values.get("intervals", {}).items()}
    return Evaluation(**finite)


def decode_event(kind: str, version: int, data: dict[str, Any], step: int) -> Event | None:
    """Return the event whose `to_event_data` is `data`, or None if it is damaged or its kind or version is unknown."""
    cls = KINDS.get(kind)
    if cls is None or version != cls.VERSION:
        return None
    hints = _hints(kind)
    try:
        values = {f.name: _convert_value(hints[f.name], data[f.name]) for f in fields(cls) if f.name in data}
        return replace(cls(**values), step=step)
    except (TypeError, ValueError, AttributeError):  # a damaged event still shows its message
        return None


@cache
def _hints(kind: str) -> dict[str, Any]:
    return get_type_hints(KINDS[kind])


def _convert_value(hint: Any, value: Any) -> Any:
    """Convert a JSON value to a field's type: JSON has no tuples, and NaN was stored as null."""
    if hint is Evaluation:
        return parse_evaluation(value)
    if hint == tuple[str, ...]:
        return tuple(value)
    if hint == dict[str, float]:
        return {name: float(number) for name, number in value.items() if number is not None}
    return math.nan if value is None and hint is float else value
