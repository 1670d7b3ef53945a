"""Stored events. A `RunEvent` is an event with its job, step, time and message, and is stored as a JSON line.

An event that was written by a later version cannot be decoded. Its stored level and message are shown instead.
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
    """An event of a job, as it is stored and shown. `time` is in Unix seconds; `message` is a human-readable sentence.

    `event` is None if this program cannot decode the event, because the event is damaged or was written by a later
    version. `level`, `message` and `data` are always available.
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
        """Return the JSON object for a line of events.jsonl, with `time` in ISO 8601 and UTC."""
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
        """Return the event that a line of events.jsonl contains."""
        time = datetime.fromisoformat(line["time"]).timestamp()
        level_and_message = line["level"], line["message"]
        return load_run_event(
            line["job"], line["step"], time, *level_and_message, line["kind"], line["version"], line["data"]
        )


def to_event_data(event: Event) -> dict[str, Any]:
    """Return the event's fields as JSON values, without `step`, which RunEvent stores separately."""
    data = asdict(event)
    del data["step"]
    return data


def load_run_event(
    job: str, step: int, time: float, level: Level, message: str, kind: str, version: int, data: dict[str, Any]
) -> RunEvent:
    """Return a RunEvent with these stored fields; its `event` is decoded from `data`."""
    return RunEvent(job, step, time, level, message, kind, version, data, decode_event(kind, version, data, step))


def parse_evaluation(data: Mapping[str, Any]) -> Evaluation:
    """Convert `data`, a result of `Evaluation.as_dict`, back to an Evaluation.

    Numbers that are not finite are stored as null (None in `data`), and become NaN.

    Raises:
        TypeError: A field is missing.
    """
    stored: dict[str, Any] = {f.name: data[f.name] for f in fields(Evaluation) if f.name in data}
    values: dict[str, Any] = {name: math.nan if number is None else number for name, number in stored.items()}
    for name in ("intervals", "missing_bounds"):
        values[name] = {field: tuple(bounds) for field, bounds in stored.get(name, {}).items()}
    return Evaluation(**values)


def decode_event(kind: str, version: int, data: dict[str, Any], step: int) -> Event | None:
    """Return the event that `to_event_data` converted to `data`.

    Return None if `data` is damaged, or if its kind or version is unknown.
    """
    cls = KINDS.get(kind)
    if cls is None or version != cls.VERSION:
        return None
    types = _get_field_types(kind)
    try:
        values = {f.name: _convert_value(types[f.name], data[f.name]) for f in fields(cls) if f.name in data}
        return replace(cls(**values), step=step)
    except (TypeError, ValueError, AttributeError):  # the message of a damaged event can still be shown
        return None


@cache
def _get_field_types(kind: str) -> dict[str, Any]:
    return get_type_hints(KINDS[kind])


def _convert_value(hint: Any, value: Any) -> Any:
    """Convert a JSON value to the type of a field. JSON stores tuples as arrays, and NaN as null."""
    if hint is Evaluation:
        return parse_evaluation(value)
    if hint == tuple[str, ...]:
        return tuple(value)
    if hint == dict[str, float]:
        return {name: float(number) for name, number in value.items() if number is not None}
    return math.nan if value is None and hint is float else value
