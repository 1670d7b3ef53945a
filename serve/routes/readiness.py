"""/v1/fine_tuning/readiness: whether a job is worth training, asked with the job's own request.

A readiness waits in the queue of the jobs and is followed and controlled as they are, below its own path. No list of
jobs has it. Not a part of OpenAI's API.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from agent_rft.serve.http.audit import made
from agent_rft.serve.http.auth import Reader, Writer, check_may_change
from agent_rft.serve.http.pages import After, AsciiJson
from agent_rft.serve.http.schemas.base import Page
from agent_rft.serve.http.schemas.jobs import JobEventBody
from agent_rft.serve.http.schemas.readiness import ReadinessBody
from agent_rft.serve.jobs.service import JobService
from agent_rft.serve.routes.fine_tuning import (
    EVENTS_PAGE,
    JOBS_PAGE,
    READINESS,
    IdempotencyKey,
    JobBody,
    JobIdPath,
    Limit,
    Retry,
    job_errors,
)

Draws = Annotated[int, Field(ge=2, le=128)]
Samples = Annotated[
    Draws,
    Query(description="Draws of each row of the training file; in all at most `jobs.max_readiness_rollouts`."),
]
Target = Annotated[
    float | None,
    Query(gt=0, le=86_400, allow_inf_nan=False, description="Wanted model and tool time of a rollout, in seconds."),
]


def make_router(service: JobService) -> APIRouter:
    """Returns the routes: plain functions, so that they run in threads, where database calls may block."""
    router = APIRouter(prefix="/fine_tuning/readiness", tags=["readiness"])
    store = service.store

    @router.post("")
    def create(
        request: Request,
        body: JobBody,
        key: Writer,
        samples: Samples = 8,
        target_latency_s: Target = None,
        idempotency_key: IdempotencyKey = None,
        retry: Retry = None,
    ) -> ReadinessBody:
        """Look at a reinforcement job before training: the body is that of POST /v1/fine_tuning/jobs."""
        look = {"samples": samples, "target_s": target_latency_s}
        with job_errors(kind=READINESS):
            job = service.create(body, key.id, idempotency_key=idempotency_key, retry=retry, look=look)
        made(request, job.id)
        return ReadinessBody.model_validate(job)

    @router.get("")
    def list_readiness(key: Reader, after: After = None, limit: Limit = JOBS_PAGE) -> Page[ReadinessBody]:
        """List them, newest first."""
        with job_errors(kind=READINESS):
            found, more = store.jobs(None, after=after, limit=limit, looks=True)
        return Page[ReadinessBody].from_entries(found, more)

    @router.get("/{readiness_id}")
    def get(readiness_id: JobIdPath, key: Reader) -> ReadinessBody:
        """Return one readiness, with its verdict once it has succeeded."""
        with job_errors(readiness_id, READINESS):
            return ReadinessBody.model_validate(store.get(readiness_id))

    @router.post("/{readiness_id}/cancel")
    def cancel(readiness_id: JobIdPath, key: Writer) -> ReadinessBody:
        """Cancel it at once, in any state."""
        with job_errors(readiness_id, READINESS):
            check_may_change(key, store.get(readiness_id).owner, "readiness")
            return ReadinessBody.model_validate(service.cancel(readiness_id))

    @router.post("/{readiness_id}/pause")
    def pause(readiness_id: JobIdPath, key: Writer) -> ReadinessBody:
        """Pause it: the rows that are being drawn are lost, those before are kept."""
        with job_errors(readiness_id, READINESS):
            check_may_change(key, store.get(readiness_id).owner, "readiness")
            return ReadinessBody.model_validate(service.pause(readiness_id))

    @router.post("/{readiness_id}/resume")
    def resume(readiness_id: JobIdPath, key: Writer) -> ReadinessBody:
        """Queue it again after a pause; it goes on with the rows that are missing."""
        with job_errors(readiness_id, READINESS):
            check_may_change(key, store.get(readiness_id).owner, "readiness")
            return ReadinessBody.model_validate(service.resume(readiness_id))

    @router.get("/{readiness_id}/events", response_class=AsciiJson)
    def events(
        readiness_id: JobIdPath, key: Reader, after: After = None, limit: Limit = EVENTS_PAGE
    ) -> Page[JobEventBody]:
        """List its events, newest first."""
        with job_errors(readiness_id, READINESS):
            found, more = store.events(readiness_id, after=after, limit=limit)
        return Page[JobEventBody].from_entries(found, more)

    return router
