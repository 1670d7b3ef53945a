"""Events as they are kept: an envelope with job, step, time and sentence, and the codec of its JSON line.

What a reader cannot decode (a kind of a later version, a line of a run from before events had kinds) is shown by its
stored level and message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, get_type_hints

from trainer.events import KINDS, Event, Level
from trainer.types import Evaluation


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event of a job as it is stored and shown. `time` is in Unix seconds; `message` is a view's sentence.

    `event` is None where `kind` and `version` are not known here: those of a later version of this program, or of a run
    from before events had kinds (`kind` is empty). Then `level`, `message` and `data` are all there is.
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

    def as_line(self) -> dict[str, Any]:
        """A line of events.jsonl; `time` is ISO 8601, UTC."""
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
        """The event of a line; lines of older runs have neither kind, version, job nor step."""
        kind, version, data = line.get("kind", ""), line.get("version", 0), line.get("data") or {}
        time = datetime.fromisoformat(line["time"]).timestamp()
        return stored(
            line.get("job", ""), line.get("step", 0), time, line["level"], line["message"], kind, version, data
        )


def data_of(event: Event) -> dict[str, Any]:
    """An event's own fields as JSON values, without `step`, which is the envelope's."""
    data = asdict(event)
    del data["step"]
    return data


def stored(
    job: str, step: int, time: float, level: Level, message: str, kind: str, version: int, data: dict[str, Any]
) -> RunEvent:
    """A RunEvent out of what was stored of it."""
    return RunEvent(job, step, time, level, message, kind, version, data, decode(kind, version, data, step))


def evaluation_of(data: Mapping[str, Any]) -> Evaluation:
    """The evaluation whose `as_dict` was stored; what was not finite is null.

    Raises:
        TypeError: it has not all fields.
    """
    values: dict[str, Any] = {f.name: data[f.name] for f in fields(Evaluation) if f.name in data}
    finite: dict[str, Any] = {name: math.nan if number is None else number for name, number in values.items()}
    return Evaluation(**finite)


def decode(kind: str, version: int, data: dict[str, Any], step: int) -> Event | None:
    """The event that `data_of` made `data` of; None where this program has no such kind and version."""
    cls = KINDS.get(kind)
    if cls is None or version != cls.VERSION:
        return None
    hints = _hints(kind)
    try:
        values = {f.name: _value(hints[f.name], data[f.name]) for f in fields(cls) if f.name in data}
        return replace(cls(**values), step=step)
    except (TypeError, ValueError, AttributeError):  # damaged: shown by its message
        return None


@cache
def _hints(kind: str) -> dict[str, Any]:
    return get_type_hints(KINDS[kind])


def _value(hint: Any, value: Any) -> Any:
    """JSON has neither tuples nor NaN: what is not finite was stored as null."""
    if hint is Evaluation:
        return evaluation_of(value)
    if hint == tuple[str, ...]:
        return tuple(value)
    if hint == dict[str, float]:
        return {name: float(number) for name, number in value.items() if number is not None}
    return math.nan if value is None and hint is float else value
