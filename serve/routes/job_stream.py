"""/v1/fine_tuning/jobs/{id}/stream: a job as it goes on, as server-sent events that a client can take up again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, assert_never

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from agent_rft.serve.http.auth import Reader
from agent_rft.serve.http.client_limits import Shares
from agent_rft.serve.http.errors import too_many
from agent_rft.serve.http.schemas.base import EVENT, ResponseBody, Responses
from agent_rft.serve.http.schemas.jobs import Job, JobEventBody
from agent_rft.serve.http.sse import event_stream
from agent_rft.serve.jobs.feed import Change, Feed, Position, StepMetrics
from agent_rft.serve.routes.fine_tuning import JobIdPath, job_errors
from agent_rft.serve.routes.job_records import step_metrics
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import EventRecord, JobRecord
from agent_rft.wire.errors import ApiError

STREAM: Responses = {
    200: {
        "content": {"text/event-stream": {"schema": EVENT}},
        "description": "Events named job, event and metrics, whose data hold an object of this name.",
    }
}
LastSeen = Annotated[str, Query(max_length=100, description="Like Last-Event-ID, for the first connection.")]


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the job is looked at, how long a stream is, and how many there may be."""

    poll_s: float = 1.0
    """Between two looks at the job."""
    looks: int = 60
    """Until a stream ends: its client connects again, and its key is checked again."""
    quiet_looks: int = 15
    """After so many without news a comment is sent, so that nobody between takes the connection for dead."""
    max_streams: int = 512
    """In all."""
    max_streams_of_key: int = 16


def make_router(store: JobStore, runs: Path, pace: Pace | None = None) -> APIRouter:
    """Returns the route of streams; `runs` holds the run folders by job."""
    pace = pace or Pace()
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"])
    streams = Shares(pace.max_streams, pace.max_streams_of_key)

    @router.get("/{job_id}/stream", response_class=StreamingResponse, responses=STREAM)
    async def stream(
        request: Request,
        job_id: JobIdPath,
        key: Reader,
        last_event_id: Annotated[str, Header(max_length=100)] = "",
        after: LastSeen = "",
    ) -> StreamingResponse:
        """Follow a job as server-sent events: its state, its events and, for its owner and admins, each step's metrics.

        It begins with what the last 100 events and 1,000 steps were, ends after a minute, and goes on after the event
        that Last-Event-ID names.
        """
        with job_errors(job_id):
            job = await run_in_threadpool(store.get, job_id)
        place = request.state.held.enter_context(streams.of(key.id, _too_many()))
        place(1)
        sees_metrics = key.may("admin") or job.owner == key.id
        feed = Feed(store, runs if sees_metrics else None, job_id, Position.read(last_event_id or after))
        return event_stream(_events(feed, job_id, pace), named=True, resumable=True)

    return router


async def _events(feed: Feed, job_id: str, pace: Pace) -> AsyncIterator[dict[str, Any]]:
    quiet = 0

    def news() -> list[dict[str, Any]]:
        with job_errors(job_id):
            return [_wire(change, job_id) | {"id": str(feed.position)} for change in feed.changes()]

    for look in range(pace.looks):
        if look:
            await asyncio.sleep(pace.poll_s)
        for event in (found := await run_in_threadpool(news)):
            yield event
        quiet = 0 if found else quiet + 1
        if quiet == pace.quiet_looks:
            quiet = 0
            yield {}


def _wire(change: Change, job_id: str) -> dict[str, Any]:
    name: str
    found: ResponseBody
    match change:
        case StepMetrics(step=step, values=values):
            name, found = "metrics", step_metrics(job_id, step, values)
        case EventRecord():
            name, found = "event", JobEventBody.model_validate(change)
        case JobRecord():
            name, found = "job", Job.model_validate(change)
        case _:
            assert_never(change)
    return {"type": name, name: found.model_dump()}


def _too_many() -> ApiError:
    message = "Too many streams are open, of this API key or in all: close some, or list what is new now and then."
    return too_many(message, "too_many_in_progress", 30)
