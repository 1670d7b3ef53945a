"""Progress view of a server's job, built from the job's events: the live view of `agent-rft train`, or JSON lines.

Every event is shown once, in order, with the time at which it happened. If the server is unreachable, requests are
repeated for up to UNREACHABLE_TIMEOUT_S seconds, because the server's jobs continue even if its API is down.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import typer
from rich.console import Console

from agent_rft.cli.api_commands.api_client import ServerUnavailable, iter_pages, send_request
from agent_rft.cluster.views.live_view import LiveView
from agent_rft.events import StepDone, event_kind
from agent_rft.stored_events import load_run_event

POLL_S = 1.0
UNREACHABLE_TIMEOUT_S = 300.0
MAX_EVENTS = 100_000
MAX_CHECKPOINTS = 100
REWARD = "full_valid_mean_reward"
MISSING = "full_valid_missing_rollouts"
FINAL_STATUSES = ("succeeded", "failed", "cancelled")
WAITING_PHASES = {"validating_files": "checking the job", "queued": "waiting in the queue", "paused": "paused"}
"""Phase to show for each status in which the driver sends no events."""


class JsonProgress:
    """Progress output as JSON lines: one line per event, then one line with the finished job."""

    def show_event(self, event: dict[str, Any]) -> None:
        typer.echo(json.dumps(event))

    def show_job(self, job: dict[str, Any]) -> None:
        if job["status"] in FINAL_STATUSES:
            typer.echo(json.dumps(job))


class LiveProgress:
    """Live view of a job in the terminal.

    Each event is shown with the time at which it happened, even if it is received later.
    """

    def __init__(self, job: dict[str, Any], console: Console) -> None:
        self._past: float | None = job["created_at"]
        self._latest = float(job["created_at"])
        self._job_id = str(job["id"])
        self._status = ""
        self.view = LiveView(0, console, self._current_time)
        self._past = None

    def show_event(self, event: dict[str, Any]) -> None:
        self._past = self._latest = float(event["created_at"])
        data = dict(event["data"] or {})
        if event["type"] == "metrics":
            metrics = {name: float(value) for name, value in data.items() if isinstance(value, int | float)}
            data = {"total_steps": int(metrics["total_steps"]), "metrics": metrics, "step": int(metrics["step"])}
            data |= {"kind": event_kind(StepDone), "version": StepDone.VERSION}
        self.view.handle_event(
            load_run_event(
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

    def show_job(self, job: dict[str, Any]) -> None:
        if job["status"] != self._status and job["status"] in WAITING_PHASES:
            self.view.show_phase(WAITING_PHASES[job["status"]])
        self._status = job["status"]

    def _current_time(self) -> float:
        # Never earlier than the last event, even if the local clock is behind the server's.
        return max(time.time(), self._latest) if self._past is None else self._past


def follow(
    client: httpx.Client,
    job: dict[str, Any],
    progress: JsonProgress | LiveProgress,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Show a job's progress until the job ends, and return the API's object for the finished job.

    Raises:
        ServerUnavailable: The server was unreachable for more than UNREACHABLE_TIMEOUT_S seconds.
    """
    path, last, seen = f"/fine_tuning/jobs/{job['id']}", "", clock()
    while True:
        try:
            job = send_request(client, "GET", path)  # before its events, so that no event of an ended job is missed
            new = list(_newer_than(iter_pages(client, f"{path}/events", MAX_EVENTS), last))
        except ServerUnavailable:
            if clock() - seen > UNREACHABLE_TIMEOUT_S:
                raise
            sleep(POLL_S)
            continue
        seen = clock()
        for event in reversed(new):
            last = event["id"]
            progress.show_event(event)
        progress.show_job(job)
        if job["status"] in FINAL_STATUSES:
            return job
        sleep(POLL_S)


def next_steps(client: httpx.Client, job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (label, text) for a job that succeeded: the best checkpoint, and commands to try and list checkpoints."""
    found = list(iter_pages(client, f"/fine_tuning/jobs/{job['id']}/checkpoints", MAX_CHECKPOINTS))
    model, known = job["fine_tuned_model"], [one for one in reversed(found) if one["metrics"].get(REWARD) is not None]
    if known:
        # Servers of version 0.2.0 mark no checkpoint. Of equal rewards, the earliest is best, and the newest is first.
        best = max(known, key=lambda entry: (entry["metrics"].get("is_best", 0.0), entry["metrics"][REWARD]))
        model, metrics = best["fine_tuned_model_checkpoint"], best["metrics"]
        missing = f"; {lost:.0f} rollouts missing" if (lost := metrics.get(MISSING, 0.0)) else ""
        yield "best checkpoint", f"{model} (validation reward {metrics[REWARD]:.3f}{missing})"
    body = {"model": model, "messages": [{"role": "user", "content": "..."}]}
    headers = '-H "Authorization: Bearer $AGENT_RFT_API_KEY" -H "Content-Type: application/json"'
    url = shlex.quote(str(client.base_url.join("chat/completions")))
    yield "try it", f"curl {url} {headers} -d {shlex.quote(json.dumps(body))}"
    yield "checkpoints", shlex.join(["agent-rft", "checkpoints", "list", job["id"]])


def _newer_than(events: Iterator[dict[str, Any]], last: str) -> Iterator[dict[str, Any]]:
    """Yield the events that are newer than the event with the id `last`; `events` and the result are newest first."""
    for event in events:
        if event["id"] == last:
            return
        yield event
