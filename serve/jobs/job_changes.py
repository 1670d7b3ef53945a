"""Changes to a job since a client's last request: state, events and step metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import EventRecord, JobRecord

MAX_EVENTS, MAX_STEPS = 100, 1_000
"""Limits on the number of past events and past steps that a client receives."""
PAGE = 20


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Metrics of one training step."""

    step: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Position:
    """Last event and last step that a client has received. As a string: `ftevent-1:12`."""

    event: str = ""
    step: int = 0

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse a position; return the start position if `text` is invalid."""
        event, _, step = text.partition(":")
        return cls(event, int(step)) if step.isascii() and step.isdecimal() and len(step) < 10 else cls()

    def __str__(self) -> str:
        return f"{self.event}:{self.step}"


Change = JobRecord | EventRecord | StepMetrics


class JobChanges:
    """Feed of the changes of one job, for one client: changes of the job itself, new events and new metrics.

    Calls block on the database and the run folder, so make them in a thread. `runs` contains the run folders of all
    jobs, named by job id. If `runs` is None, metrics are omitted.
    """

    def __init__(self, store: JobStore, runs: Path | None, job_id: str, position: Position) -> None:
        self._store = store
        self._run = None if runs is None else RunFolder(runs / job_id)
        self._job_id = job_id
        self._job: JobRecord | None = None
        self._sent: dict[int, dict[str, float]] = {}
        self._first_step = position.step + 1
        self._read_at = (-1, -1)
        self.position = position

    def iter_changes(self) -> Iterator[Change]:
        """Yield the changes since the last call, and advance `position` with each event and step.

        Raises:
            UnknownJob: The job does not exist.
        """
        job = replace(self._store.get(self._job_id), heartbeat_at=None)
        if job != self._job:
            self._job = job
            yield job
        for event in reversed(self._events()):
            self.position = replace(self.position, event=event.id)
            yield event
        for step, values in self._metrics():
            self.position = replace(self.position, step=step)
            yield StepMetrics(step, values)

    def _events(self) -> list[EventRecord]:
        """Return the events after the event in `position`, newest first."""
        found: list[EventRecord] = []
        more = True
        while more and len(found) < MAX_EVENTS:
            page, more = self._store.events(self._job_id, after=found[-1].id if found else None, limit=PAGE)
            for event in page:
                if event.id == self.position.event:
                    return found
                found.append(event)
        return found[:MAX_EVENTS]

    def _metrics(self) -> list[tuple[int, dict[str, float]]]:
        """Return (step, metrics) of the steps whose metrics are new or have changed since the last call.

        The first call returns only the steps after the step in `position`. A later call also returns an earlier step if
        a resumed run has repeated the step.
        """
        if self._run is None:
            return []
        try:
            found = self._run.metrics_file.stat()
        except FileNotFoundError:
            return []
        if (found.st_size, found.st_mtime_ns) == self._read_at:
            return []
        self._read_at = found.st_size, found.st_mtime_ns
        steps = {int(values["step"]): values for values in self._run.metrics()}
        new = [(step, values) for step, values in steps.items() if self._sent.get(step) != values]
        self._sent = steps
        first, self._first_step = self._first_step, 0
        return [(step, values) for step, values in new if step >= first][-MAX_STEPS:]
