"""/v1/fine_tuning/jobs/{id}/stream: a job's changes as a resumable stream of server-sent events."""

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
from agent_rft.serve.http.client_limits import OwnerQuota
from agent_rft.serve.http.error_responses import make_too_many_error
from agent_rft.serve.http.schemas.base import EVENT, ResponseBody, Responses
from agent_rft.serve.http.schemas.job_schemas import Job, JobEventBody
from agent_rft.serve.http.sse import event_stream
from agent_rft.serve.jobs.job_changes import Change, JobChanges, Position, StepMetrics
from agent_rft.serve.routes.job_records import step_metrics
from agent_rft.serve.routes.job_routes import JobIdPath, job_errors
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import EventRecord, JobRecord
from agent_rft.wire.api_errors import ApiError

STREAM: Responses = {
    200: {
        "content": {"text/event-stream": {"schema": EVENT}},
        "description": "Events named `job`, `event` and `metrics`. An event's data is an object that has the job, the "
        "event or the metrics under the key of this name.",
    }
}
LastSeen = Annotated[
    str,
    Query(max_length=100, description="Same as the header `Last-Event-ID`, for clients that cannot set headers."),
]


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits of job streams: the polling interval, the duration of a stream, and the number of streams."""

    poll_s: float = 1.0
    """Seconds between two checks of the job for changes."""
    max_polls: int = 60
    """Number of checks for changes before a stream ends.

    The client then reconnects, and the client's API key is checked again.
    """
    comment_after_polls: int = 15
    """Number of checks without changes before the stream sends a comment, which keeps proxies from closing it."""
    max_streams: int = 512
    """Maximum number of concurrent streams."""
    max_streams_of_key: int = 16
    """Maximum number of concurrent streams per API key."""


def make_router(store: JobStore, runs: Path, stream_limits: StreamLimits | None = None) -> APIRouter:
    """Return the router of job streams. The folder `runs` contains the run folders of all jobs, named by job id."""
    limits = stream_limits or StreamLimits()
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"])
    streams = OwnerQuota(limits.max_streams, limits.max_streams_of_key)

    @router.get("/{job_id}/stream", response_class=StreamingResponse, responses=STREAM)
    async def stream_job(
        request: Request,
        job_id: JobIdPath,
        key: Reader,
        last_event_id: Annotated[str, Header(max_length=100)] = "",
        after: LastSeen = "",
    ) -> StreamingResponse:
        """Stream a job's state and events as server-sent events. Its owner and admins also receive step metrics.

        The stream begins with up to 100 past events and 1,000 past steps, and ends after a minute. To resume the
        stream, send Last-Event-ID. Not part of OpenAI's API.
        """
        with job_errors(job_id):
            job = await run_in_threadpool(store.get, job_id)
        take = request.state.held.enter_context(streams.hold(key.id, _too_many_streams_error()))
        take(1)
        sees_metrics = key.has_scope("admin") or job.owner == key.id
        feed = JobChanges(store, runs if sees_metrics else None, job_id, Position.parse(last_event_id or after))
        return event_stream(_poll_changes(feed, job_id, limits), named=True, resumable=True)

    return router


async def _poll_changes(feed: JobChanges, job_id: str, limits: StreamLimits) -> AsyncIterator[dict[str, Any]]:
    num_unchanged = 0

    def read_changes() -> list[dict[str, Any]]:
        with job_errors(job_id):
            return [_build_event(change, job_id) | {"id": str(feed.position)} for change in feed.iter_changes()]

    for check in range(limits.max_polls):
        if check:
            await asyncio.sleep(limits.poll_s)
        for event in (found := await run_in_threadpool(read_changes)):
            yield event
        num_unchanged = 0 if found else num_unchanged + 1
        if num_unchanged == limits.comment_after_polls:
            num_unchanged = 0
            yield {}


def _build_event(change: Change, job_id: str) -> dict[str, Any]:
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


def _too_many_streams_error() -> ApiError:
    message = "Too many streams are open, for this API key or in total. Close some, or poll the job's events instead."
    return make_too_many_error(message, "too_many_in_progress", 30)
