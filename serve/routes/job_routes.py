"""/v1/fine_tuning/jobs: create, list, follow and control jobs. Every key can read all jobs and change its own jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Header, Path, Query, Request

from agent_rft.serve.http.audit_actions import set_created_id
from agent_rft.serve.http.auth import Admin, Reader, Writer, check_may_change
from agent_rft.serve.http.error_responses import make_not_found_error
from agent_rft.serve.http.pagination import LIMIT, After, AsciiJson
from agent_rft.serve.http.schemas.base import Page
from agent_rft.serve.http.schemas.job_schemas import Checkpoint, Job, JobEventBody, JobLog, JobOutput, JobProgress
from agent_rft.serve.jobs.job_request import DescribedAs, JobRequestBody
from agent_rft.serve.jobs.job_service import JobService
from agent_rft.serve.stores.job_states import IdempotencyConflict, IllegalStateChange, UnknownCursor, UnknownJob
from agent_rft.serve.stores.job_store import JobStore, is_readiness
from agent_rft.serve.stores.job_tables import JobRecord
from agent_rft.serve.stores.key_store import ApiKey
from agent_rft.wire.api_errors import ApiError

JOBS_PAGE, EVENTS_PAGE, CHECKPOINTS_PAGE, MAX_PAGE = 20, 20, 10, 1_000
MAX_FILTERS = 16

JobBody = Annotated[dict[str, Any], Body(), DescribedAs(JobRequestBody)]
"""Request body, which the job service validates with the same code as job files."""
JobIdPath = Annotated[str, Path(max_length=100)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        description="Unique string for this request. A repeat with the same string does not create a second job.",
    ),
]
Retry = Annotated[int | None, Header(alias="x-stainless-retry-count", ge=0, include_in_schema=False)]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description=LIMIT)]
Attempt = Annotated[
    int | None,
    Query(
        ge=0,
        description="Return only the output of the process with this number: 0 for the job check, 1 for the first "
        "driver.",
    ),
]
Include = Annotated[
    Literal["progress"] | None,
    Query(description="`progress` adds the progress of each job, which takes longer. Not part of OpenAI's API."),
]


@dataclass(frozen=True, slots=True)
class JobKind:
    """Kind of a job in the store: fine-tuning job or readiness check. The two kinds have separate routes."""

    name: str
    param: str
    is_readiness_check: bool


JOBS = JobKind("fine-tuning job", "fine_tuning_job_id", is_readiness_check=False)
READINESS = JobKind("readiness check", "readiness_id", is_readiness_check=True)


def make_router(service: JobService) -> APIRouter:
    """Return the router. Its routes are not `async`, so FastAPI runs them in threads, where they may block."""
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"])
    store = service.store

    def build_job(job: JobRecord, include: Literal["progress"] | None) -> Job:
        body = Job.model_validate(job)
        if include and (progress := store.progress(job)) is not None:
            body.progress = JobProgress.model_validate(progress)
        return body

    @router.post("")
    def create_job(
        request: Request,
        body: JobBody,
        key: Writer,
        idempotency_key: IdempotencyKey = None,
        retry: Retry = None,
    ) -> Job:
        """Create a fine-tuning job. A retry of the same request does not create a second job."""
        with job_errors():
            job = service.create(body, key.id, idempotency_key=idempotency_key, retry=retry)
        set_created_id(request, job.id)
        return Job.model_validate(job)

    @router.get("")
    def list_jobs(
        request: Request, key: Reader, include: Include = None, after: After = None, limit: Limit = JOBS_PAGE
    ) -> Page[Job]:
        """List jobs, newest first. The query `metadata[key]=value` selects jobs with this metadata."""
        with job_errors():
            found, more = store.list_jobs(None, after=after, limit=limit, labels=_read_label_filters(request))
        return Page[Job].from_entries([build_job(job, include) for job in found], more)

    @router.get("/{job_id}")
    def get_job(job_id: JobIdPath, key: Reader, include: Include = None) -> Job:
        """Return a job."""
        with job_errors(job_id):
            return build_job(store.get(job_id), include)

    @router.post("/{job_id}/cancel")
    def cancel_job(job_id: JobIdPath, key: Writer) -> Job:
        """Cancel a job that has not ended. Its checkpoints are kept."""
        with job_errors(job_id):
            check_may_change(key, store.get(job_id).owner, "job")
            return Job.model_validate(service.cancel(job_id))

    @router.post("/{job_id}/pause")
    def pause_job(job_id: JobIdPath, key: Writer) -> Job:
        """Pause a running job. The job saves a checkpoint and releases its resources."""
        with job_errors(job_id):
            check_may_change(key, store.get(job_id).owner, "job")
            return Job.model_validate(service.pause(job_id))

    @router.post("/{job_id}/resume")
    def resume_job(job_id: JobIdPath, key: Writer) -> Job:
        """Resume a paused job. The job is queued again and continues from its last checkpoint."""
        with job_errors(job_id):
            check_may_change(key, store.get(job_id).owner, "job")
            return Job.model_validate(service.resume(job_id))

    @router.get("/{job_id}/events", response_class=AsciiJson)
    def list_events(
        job_id: JobIdPath, key: Reader, after: After = None, limit: Limit = EVENTS_PAGE
    ) -> Page[JobEventBody]:
        """List the events of a job, newest first."""
        with job_errors(job_id):
            found, more = store.events(job_id, after=after, limit=limit)
        return Page[JobEventBody].from_entries(found, more)

    @router.get("/{job_id}/checkpoints")
    def list_checkpoints(
        job_id: JobIdPath, key: Reader, after: After = None, limit: Limit = CHECKPOINTS_PAGE
    ) -> Page[Checkpoint]:
        """List the checkpoints of a job, newest first. Each can be used as a model."""
        with job_errors(job_id):
            found, more = store.checkpoints(job_id, after=after, limit=limit)
        return Page[Checkpoint].from_entries(found, more)

    @router.get("/{job_id}/log")
    def get_log(job_id: JobIdPath, key: Admin, attempt: Attempt = None) -> JobLog:
        """Return a job's full error and the last output of its processes, for admins. Not part of OpenAI's API."""
        with job_errors(job_id, READINESS if is_readiness(job_id) else JOBS):
            error, outputs = service.read_log(job_id)
        selected = [JobOutput.model_validate(output) for output in outputs if attempt in (None, output.attempt)]
        return JobLog(job_id=job_id, error=error or None, outputs=selected)

    return router


# -- requests ----------------------------------------------------------------------------------------------------------


def _read_label_filters(request: Request) -> dict[str, str]:
    """Return the metadata filters, by key, from the query parameters `metadata[key]=value`."""
    found = {
        name.removeprefix("metadata[").removesuffix("]"): value
        for name, value in request.query_params.items()
        if name.startswith("metadata[") and name.endswith("]")
    }
    if len(found) > MAX_FILTERS:
        raise ApiError(
            400, f"At most {MAX_FILTERS} metadata filters are supported.", param="metadata", code="invalid_value"
        )
    for name, value in found.items():
        if not 1 <= len(name) <= 64 or len(value) > 512 or '"' in name or "\x00" in name + value:
            message = (
                "The metadata filter is invalid. Keys must have 1 to 64 characters and no quotes, values at most 512 "
                "characters."
            )
            raise ApiError(400, message, param="metadata", code="invalid_value")
    return found


def get_own_job(store: JobStore, job_id: str, key: ApiKey) -> JobRecord:
    """Return the job if `key` owns it or has the `admin` scope.

    Raises:
        UnknownJob: The job does not exist, or `key` has no access to it.
    """
    return store.get(job_id, None if key.has_scope("admin") else key.id)


@contextmanager
def job_errors(job_id: str = "", kind: JobKind = JOBS) -> Iterator[None]:
    """Context manager that converts errors of the job store to API errors.

    A job that is not of this `kind` is reported as missing.
    """
    try:
        if job_id and is_readiness(job_id) != kind.is_readiness_check:
            raise UnknownJob(job_id)
        yield
    except UnknownJob:
        raise make_not_found_error(kind.name, job_id, kind.param) from None
    except UnknownCursor as error:
        raise ApiError(400, error.message, param="after", code="invalid_value") from None
    except IllegalStateChange as error:
        raise ApiError(400, error.message, code="invalid_job_state") from None
    except IdempotencyConflict as error:
        raise ApiError(400, error.message, param="idempotency-key", code="idempotency_key_reused") from None
