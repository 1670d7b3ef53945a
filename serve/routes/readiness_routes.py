"""/v1/fine_tuning/readiness: readiness checks, which sample the model and report whether training is likely to help.

A readiness check has the same request body as a job, waits in the same queue and is controlled in the same way. It is
not included in lists of jobs. Its reasons and findings describe rows and rewards, so only its owner and admins can read
it, like a job's rollouts. Not part of OpenAI's API.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from agent_rft.serve.http.audit_actions import set_created_id
from agent_rft.serve.http.auth import Reader, Writer
from agent_rft.serve.http.pagination import After, AsciiJson
from agent_rft.serve.http.schemas.base import Page
from agent_rft.serve.http.schemas.job_schemas import JobEventBody
from agent_rft.serve.http.schemas.readiness_schemas import ReadinessBody
from agent_rft.serve.jobs.job_service import JobService
from agent_rft.serve.routes.job_routes import (
    EVENTS_PAGE,
    JOBS_PAGE,
    READINESS,
    IdempotencyKey,
    JobBody,
    JobIdPath,
    Limit,
    Retry,
    get_own_job,
    job_errors,
)

RolloutsPerRow = Annotated[int, Field(ge=2, le=128)]
Samples = Annotated[
    RolloutsPerRow,
    Query(description="Rollouts per row of the training file. `jobs.max_readiness_rollouts` limits the total."),
]
Target = Annotated[
    float | None,
    Query(
        gt=0,
        le=86_400,
        allow_inf_nan=False,
        description="Maximum seconds that the model and the tools should take per rollout.",
    ),
]


def make_router(service: JobService) -> APIRouter:
    """Return the router. Its routes are not `async`, so FastAPI runs them in threads, where they may block."""
    router = APIRouter(prefix="/fine_tuning/readiness", tags=["readiness"])
    store = service.store

    @router.post("")
    def create_readiness(
        request: Request,
        body: JobBody,
        key: Writer,
        samples: Samples = 8,
        target_latency_s: Target = None,
        idempotency_key: IdempotencyKey = None,
        retry: Retry = None,
    ) -> ReadinessBody:
        """Start a readiness check of a reinforcement job, with the same request body as POST /v1/fine_tuning/jobs."""
        readiness = {"samples": samples, "target_s": target_latency_s}
        with job_errors(kind=READINESS):
            job = service.create(body, key.id, idempotency_key=idempotency_key, retry=retry, readiness=readiness)
        set_created_id(request, job.id)
        return ReadinessBody.model_validate(job)

    @router.get("")
    def list_readiness(key: Reader, after: After = None, limit: Limit = JOBS_PAGE) -> Page[ReadinessBody]:
        """List the key's own readiness checks, newest first; admins see all of them."""
        owner = None if key.has_scope("admin") else key.id
        with job_errors(kind=READINESS):
            found, more = store.list_jobs(owner, after=after, limit=limit, readiness_checks=True)
        return Page[ReadinessBody].from_entries(found, more)

    @router.get("/{readiness_id}")
    def get_readiness(readiness_id: JobIdPath, key: Reader) -> ReadinessBody:
        """Return a readiness check to its owner or an admin. A check with the status `succeeded` includes a verdict."""
        with job_errors(readiness_id, READINESS):
            return ReadinessBody.model_validate(get_own_job(store, readiness_id, key))

    @router.post("/{readiness_id}/cancel")
    def cancel_readiness(readiness_id: JobIdPath, key: Writer) -> ReadinessBody:
        """Cancel a readiness check that has not ended."""
        with job_errors(readiness_id, READINESS):
            get_own_job(store, readiness_id, key)
            return ReadinessBody.model_validate(service.cancel(readiness_id))

    @router.post("/{readiness_id}/pause")
    def pause_readiness(readiness_id: JobIdPath, key: Writer) -> ReadinessBody:
        """Pause a readiness check. It saves completed rows and samples unfinished rows again when it resumes."""
        with job_errors(readiness_id, READINESS):
            get_own_job(store, readiness_id, key)
            return ReadinessBody.model_validate(service.pause(readiness_id))

    @router.post("/{readiness_id}/resume")
    def resume_readiness(readiness_id: JobIdPath, key: Writer) -> ReadinessBody:
        """Resume a paused readiness check. It is queued again and continues with the unfinished rows."""
        with job_errors(readiness_id, READINESS):
            get_own_job(store, readiness_id, key)
            return ReadinessBody.model_validate(service.resume(readiness_id))

    @router.get("/{readiness_id}/events", response_class=AsciiJson)
    def list_readiness_events(
        readiness_id: JobIdPath, key: Reader, after: After = None, limit: Limit = EVENTS_PAGE
    ) -> Page[JobEventBody]:
        """List the events of a readiness check, newest first, for its owner and admins."""
        with job_errors(readiness_id, READINESS):
            get_own_job(store, readiness_id, key)
            found, more = store.events(readiness_id, after=after, limit=limit)
        return Page[JobEventBody].from_entries(found, more)

    return router
