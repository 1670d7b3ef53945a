"""/v1/fine_tuning/readiness: whether a job is worth training, asked with the job's own request.

A readiness waits in the queue of the jobs and is followed and controlled as they are, below its own path. No list of
jobs has it. Not a part of OpenAI's API.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from cluster.jobs.service import JobService
from cluster.stores.job_tables import JobRecord
from serve.http.audit import made
from serve.http.auth import Reader, Writer, check_may_change
from serve.http.pages import AsciiJson, page
from serve.http.schemas.base import Page, answers
from serve.http.schemas.jobs import JobEventBody
from serve.http.schemas.readiness import ReadinessBody
from serve.routes.fine_tuning import (
    READINESS,
    EventPages,
    IdempotencyKey,
    JobBody,
    JobPages,
    Retry,
    event_object,
    failure_object,
    job_errors,
    seconds,
)

IdPath = Annotated[str, Path(max_length=100)]
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

    @router.post("", response_model=None, responses=answers(ReadinessBody))
    def create(
        request: Request,
        body: JobBody,
        key: Writer,
        samples: Samples = 8,
        target_latency_s: Target = None,
        idempotency_key: IdempotencyKey = None,
        retry: Retry = None,
    ) -> dict[str, Any]:
        """Look at a reinforcement job before training: the body is that of POST /v1/fine_tuning/jobs."""
        look = {"samples": samples, "target_s": target_latency_s}
        with job_errors(kind=READINESS):
            job = service.create(body, key.id, idempotency_key=idempotency_key, retry=retry, look=look)
        made(request, job.id)
        return readiness_object(job)

    @router.get("", response_model=None, responses=answers(Page[ReadinessBody]))
    def list_readiness(key: Reader, pages: JobPages) -> JSONResponse:
        """List them, newest first."""
        with job_errors(kind=READINESS):
            found, more = store.jobs(None, after=pages.after, limit=pages.limit, looks=True)
        return page([readiness_object(job) for job in found], more)

    @router.get("/{readiness_id}", response_model=None, responses=answers(ReadinessBody))
    def get(readiness_id: IdPath, key: Reader) -> dict[str, Any]:
        """Return one readiness, with its verdict once it has succeeded."""
        with job_errors(readiness_id, READINESS):
            return readiness_object(store.get(readiness_id))

    @router.post("/{readiness_id}/cancel", response_model=None, responses=answers(ReadinessBody))
    def cancel(readiness_id: IdPath, key: Writer) -> dict[str, Any]:
        """Cancel it at once, in any state."""
        with job_errors(readiness_id, READINESS):
            check_may_change(key, store.get(readiness_id).owner, "readiness")
            return readiness_object(service.cancel(readiness_id))

    @router.post("/{readiness_id}/pause", response_model=None, responses=answers(ReadinessBody))
    def pause(readiness_id: IdPath, key: Writer) -> dict[str, Any]:
        """Pause it: the rows that are being drawn are lost, those before are kept."""
        with job_errors(readiness_id, READINESS):
            check_may_change(key, store.get(readiness_id).owner, "readiness")
            return readiness_object(service.pause(readiness_id))

    @router.post("/{readiness_id}/resume", response_model=None, responses=answers(ReadinessBody))
    def resume(readiness_id: IdPath, key: Writer) -> dict[str, Any]:
        """Queue it again after a pause; it goes on with the rows that are missing."""
        with job_errors(readiness_id, READINESS):
            check_may_change(key, store.get(readiness_id).owner, "readiness")
            return readiness_object(service.resume(readiness_id))

    @router.get("/{readiness_id}/events", response_model=None, responses=answers(Page[JobEventBody]))
    def events(readiness_id: IdPath, key: Reader, pages: EventPages) -> JSONResponse:
        """List its events, newest first."""
        with job_errors(readiness_id, READINESS):
            found, more = store.events(readiness_id, after=pages.after, limit=pages.limit)
        return page([event_object(event) for event in found], more, AsciiJson)

    return router


def readiness_object(job: JobRecord) -> dict[str, Any]:
    """Returns a readiness in the wire form."""
    look, findings = job.look or {}, job.findings
    return {
        "id": job.id,
        "object": "fine_tuning.readiness",
        "created_at": int(job.created_at),
        "finished_at": seconds(job.finished_at),
        "model": job.model,
        "status": job.status,
        "error": failure_object(job.error),
        "method": job.method,
        "training_file": job.training_file,
        "validation_file": job.validation_file,
        "test_file": job.test_file,
        "seed": job.seed,
        "suffix": job.suffix,
        "metadata": job.labels,
        "samples": look.get("samples"),
        "target_latency_s": look.get("target_s"),
        "verdict": None if findings is None else findings["verdict"],
        "reasons": [] if findings is None else findings["reasons"],
        "findings": findings,
        "result_files": list(job.result_files),
    }
