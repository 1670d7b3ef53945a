"""A server's job as it goes on, from its events alone: the live view of the main job, or a line of JSON for each.

Every event is shown once, in its order, at the time at which it happened. A server that is away for a while is waited
for, since its jobs go on without it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import httpx
import typer
from rich.console import Console

from cluster.views.live import LiveView
from serve.cli.api_client import NoAnswer, ask, pages
from trainer.events import StepDone, kind_of
from trainer.run_events import stored

POLL_S = 1.0
AWAY_S = 300.0
MOST_EVENTS = 100_000
ENDED = ("succeeded", "failed", "cancelled")
WAITING = {"validating_files": "checking the job", "queued": "waiting for its turn", "paused": "paused"}
"""What a status means that no event of the driver's tells."""


class Sight(Protocol):
    """Who is shown what happens."""

    def event(self, event: dict[str, Any]) -> None: ...

    def job(self, job: dict[str, Any]) -> None:
        """As it is after the events so far."""


class JsonLines:
    """JSON: a line for each event, and the job as the last one."""

    def event(self, event: dict[str, Any]) -> None:
        typer.echo(json.dumps(event))

    def job(self, job: dict[str, Any]) -> None:
        if job["status"] in ENDED:
            typer.echo(json.dumps(job))


class LiveSight:
    """The live view, whose clock is the server's while it is told of what happened before."""

    def __init__(self, job: dict[str, Any], console: Console) -> None:
        self._past: float | None = job["created_at"]
        self._latest = float(job["created_at"])
        self._job_id = str(job["id"])
        self._status = ""
        self.view = LiveView(0, console, self._now)
        self._past = None

    def event(self, event: dict[str, Any]) -> None:
        self._past = self._latest = float(event["created_at"])
        data = dict(event["data"] or {})
        if event["type"] == "metrics":
            metrics = {name: float(value) for name, value in data.items() if isinstance(value, int | float)}
            data = {"total_steps": int(metrics["total_steps"]), "metrics": metrics, "step": int(metrics["step"])}
            data |= {"kind": kind_of(StepDone), "version": StepDone.VERSION}
        self.view.event(
            stored(
                self._job_id,
                int(data.pop("step", 0)),
                self._latest,
                event["level"],
                event["message"],
                str(data.pop("kind", "")),
                int(data.pop("version", 0)),
                data,
            )
        )
        self._past = None

    def job(self, job: dict[str, Any]) -> None:
        if job["status"] != self._status and job["status"] in WAITING:
            self.view.phase(WAITING[job["status"]])
        self._status = job["status"]

    def _now(self) -> float:
        # Never before the last event, also where this machine's clock is behind the server's.
        return max(time.time(), self._latest) if self._past is None else self._past


def follow(
    client: httpx.Client,
    job: dict[str, Any],
    sight: Sight,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """The job as it ended.

    Raises:
        NoAnswer: the server has been away for too long.
    """
    path, last, seen = f"/fine_tuning/jobs/{job['id']}", "", clock()
    while True:
        try:
            job = ask(client, "GET", path)  # before its events: of a job that has ended none is missed
            new = list(_until(pages(client, f"{path}/events", MOST_EVENTS), last))
        except NoAnswer:
            if clock() - seen > AWAY_S:
                raise
            sleep(POLL_S)
            continue
        seen = clock()
        for event in reversed(new):
            last = event["id"]
            sight.event(event)
        sight.job(job)
        if job["status"] in ENDED:
            return job
        sleep(POLL_S)


def _until(events: Iterator[dict[str, Any]], last: str) -> Iterator[dict[str, Any]]:
    """Those that came after the event `last`, newest first."""
    for event in events:
        if event["id"] == last:
            return
        yield event
