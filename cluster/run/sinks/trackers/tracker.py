"""Data of a run that trackers receive: metrics and hyperparameters, but no rows, text, URLs or secrets."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent_rft.errors import RftError
from agent_rft.events import Evaluated, JobEnded, LossEvaluated, Outcome, StepDone, TrackerCause
from agent_rft.stored_events import RunEvent

SECTIONS = ("hyperparameters", "limits", "reward", "algorithm")
"""Parts of a method's settings that are sent to trackers."""
MAX_FAILURES = 5
"""Number of consecutive failures after which a tracker is cut off. Until then, unsent metrics are kept."""
Scalar = str | int | float | bool


class TrackerUnavailable(RftError):
    """A tracker cannot be used. `cause` is the category of the reason, such as `not_installed`."""

    def __init__(self, cause: TrackerCause, message: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """Id, name, folder and hyperparameters of a run, for a tracker.

    A tracker continues the run with the same `id`, and writes files only into the run folder.
    """

    id: str
    name: str
    folder: Path
    settings: Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class MetricsPoint:
    """Metrics of a step. `time` is in Unix seconds."""

    step: int
    time: float
    metrics: Mapping[str, float]


class Tracker(Protocol):
    """Interface to an experiment tracker. Its methods may block, and may raise any error."""

    def log(self, point: MetricsPoint) -> None: ...

    def close(self, outcome: Outcome) -> None: ...


class TrackerSink:
    """Sink that sends the metrics in events to a tracker. If a call fails, the metrics are sent with the next event."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._pending: deque[MetricsPoint] = deque()
        self._failures = 0
        self._outcome: Outcome = "stopped"

    def handle_event(self, event: RunEvent) -> None:
        if isinstance(event.event, JobEnded):
            self._outcome = event.event.outcome
        point = extract_point(event)
        if point is None:
            return
        self._pending.append(point)
        try:
            self._send()
            self._failures = 0
        except Exception:
            self._failures += 1
            if self._failures == MAX_FAILURES:
                raise

    def close(self) -> None:
        self._send()
        self._tracker.close(self._outcome)

    def _send(self) -> None:
        while self._pending:
            self._tracker.log(self._pending[0])
            self._pending.popleft()


def extract_point(event: RunEvent) -> MetricsPoint | None:
    """Return the metrics in an event, such as `train_mean_reward` or `validation/grade`; None if there are none."""
    match event.event:
        case StepDone(metrics=metrics):
            found: Mapping[str, Any] = metrics
        case Evaluated(name=name, evaluation=evaluation):
            found = {f"{name}/{field}": value for field, value in evaluation.as_dict().items()}
        case LossEvaluated(loss=loss):
            found = {"validation/loss": loss}
        case _:
            return None
    numbers = {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
    return MetricsPoint(
        event.step, event.time, {name: value for name, value in numbers.items() if math.isfinite(value)}
    )


def extract_settings(job: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the hyperparameters of a job, keyed by setting path. `job` must not contain secrets."""
    method = job["method"]["type"]
    parts = {name: part for name, part in job["method"][method].items() if name in SECTIONS}
    found = {"model": Path(job["model"]).name, "method": method, "seed": job["seed"]} | dict(_flatten(parts, ""))
    return found | dict(_flatten({"cluster": job["cluster"]}, ""))


def _flatten(part: Mapping[str, Any], above: str) -> Iterator[tuple[str, Scalar]]:
    for name, value in part.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{above}{name}.")
        elif isinstance(value, Scalar):
            yield f"{above}{name}", value
