"""/v1/fine_tuning/jobs: create, list, follow and control jobs; every key sees all jobs and changes its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Header, Path, Query, Request

from agent_rft.serve.http.audit import made
from agent_rft.serve.http.auth import Admin, Reader, Writer, check_may_change
from agent_rft.serve.http.errors import not_found
from agent_rft.serve.http.pages import LIMIT, After, AsciiJson
from agent_rft.serve.http.schemas.base import Page
from agent_rft.serve.http.schemas.jobs import Checkpoint, Job, JobEventBody, JobLog, JobOutput, JobProgress
from agent_rft.serve.jobs.request import Described, WireJob
from agent_rft.serve.jobs.service import JobService
from agent_rft.serve.stores.job_states import IdempotencyConflict, IllegalMove, UnknownCursor, UnknownJob
from agent_rft.serve.stores.job_store import JobStore, is_readiness
from agent_rft.serve.stores.job_tables import JobRecord
from agent_rft.serve.stores.keys import ApiKey
from agent_rft.wire.errors import ApiError

JOBS_PAGE, EVENTS_PAGE, CHECKPOINTS_PAGE, MAX_PAGE = 20, 20, 10, 1_000
MAX_FILTERS = 16

JobBody = Annotated[dict[str, Any], Body(), Described(WireJob)]
"""Validated by the job service, by the same code that validates job files."""
JobIdPath = Annotated[str, Path(max_length=100)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1, max_length=255, description="A text of your own; a second request with it makes no second job."
    ),
]
Retry = Annotated[int | None, Header(alias="x-stainless-retry-count", ge=0, include_in_schema=False)]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description=LIMIT)]
Attempt = Annotated[
    int | None, Query(ge=0, description="Only this attempt: 0 is the validation, drivers are numbered from 1.")
]
Include = Annotated[
    Literal["progress"] | None,
    Query(description="progress: also say how far each job is, which takes longer. Not a part of OpenAI's API."),
]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a path names: jobs that train, or looks at jobs before training."""

    name: str
    param: str
    readiness: bool


JOBS = Kind("fine-tuning job", "fine_tuning_job_id", readiness=False)
READINESS = Kind("readiness", "readiness_id", readiness=True)


def make_router(service: JobService) -> APIRouter:
    """Returns the routes of jobs: plain functions, so that they run in threads, where database calls may block."""
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"])
    store = service.store

    def shown(job: JobRecord, include: Literal["progress"] | None) -> Job:
        found = Job.model_validate(job)
        if include and (progress := store.progress(job)) is not None:
            found.progress = JobProgress.model_validate(progress)
        return found

    @router.post("")
    def create(
        request: Request,
        body: JobBody,
        key: Writer,
        idempotency_key: IdempotencyKey = None,
        retry: Retry = None,
    ) -> Job:
        """Create a fine-tuning job; a retried request does not create a second one."""
        with job_errors():
            job = service.create(body, key.id, idempotency_key=idempotency_key, retry=retry)
        made(request, job.id)
        return Job.model_validate(job)

    @router.get("")
    def list_jobs(
        request: Request, key: Reader, include: Include = None, after: After = None, limit: Limit = JOBS_PAGE
    ) -> Page[Job]:
        """List jobs, newest first; `metadata[k]=v` selects the jobs with this metadata."""
        with job_errors():
            found, more = store.jobs(None, after=after, limit=limit, labels=_labels(request))
        return Page[Job].from_entries([shown(job, include) for job in found], more)

    @router.get("/{job_id}")
    def get_job(job_id: JobIdPath, key: Reader, include: Include = None) -> Job:
        """Return one job."""
        with job_errors(job_id):
            return shown(store.get(job_id), include)

    @router.post("/{job_id}/cancel")
    def cancel(job_id: JobIdPath, key: Writer) -> Job:
        """Cancel a job at once, in any state; its checkpoints are kept."""
        with job_errors(job_id):
            check_may_change(key, store.get(job_id).owner, "job")
            return Job.model_validate(service.cancel(job_id))

    @router.post("/{job_id}/pause")
    def pause(job_id: JobIdPath, key: Writer) -> Job:
        """Pause a running job: it saves a checkpoint and releases its resources."""
        with job_errors(job_id):
            check_may_change(key, store.get(job_id).owner, "job")
            return Job.model_validate(service.pause(job_id))

    @router.post("/{job_id}/resume")
    def resume(job_id: JobIdPath, key: Writer) -> Job:
        """Queue a paused job again; it resumes from its checkpoint."""
        with job_errors(job_id):
            check_may_change(key, store.get(job_id).owner, "job")
            return Job.model_validate(service.resume(job_id))

    @router.get("/{job_id}/events", response_class=AsciiJson)
    def events(job_id: JobIdPath, key: Reader, after: After = None, limit: Limit = EVENTS_PAGE) -> Page[JobEventBody]:
        """List the events of a job, newest first."""
        with job_errors(job_id):
            found, more = store.events(job_id, after=after, limit=limit)
        return Page[JobEventBody].from_entries(found, more)

    @router.get("/{job_id}/checkpoints")
    def checkpoints(
        job_id: JobIdPath, key: Reader, after: After = None, limit: Limit = CHECKPOINTS_PAGE
    ) -> Page[Checkpoint]:
        """List the checkpoints of a job, newest first; each can be called as a model."""
        with job_errors(job_id):
            found, more = store.checkpoints(job_id, after=after, limit=limit)
        return Page[Checkpoint].from_entries(found, more)

    @router.get("/{job_id}/log")
    def log(job_id: JobIdPath, key: Admin, attempt: Attempt = None) -> JobLog:
        """Return the ends of the outputs of a job's processes, for admins: not a part of OpenAI's API."""
        with job_errors(job_id, READINESS if is_readiness(job_id) else JOBS):
            error, outputs = service.log(job_id)
        wanted = [JobOutput.model_validate(output) for output in outputs if attempt in (None, output.attempt)]
        return JobLog(job_id=job_id, error=error or None, outputs=wanted)

    return router


# -- requests ----------------------------------------------------------------------------------------------------------


def _labels(request: Request) -> dict[str, str]:
    """Returns the filters that the query gives as `metadata[key]=value`."""
    found = {
        name.removeprefix("metadata[").removesuffix("]"): value
        for name, value in request.query_params.items()
        if name.startswith("metadata[") and name.endswith("]")
    }
    if len(found) > MAX_FILTERS:
        raise ApiError(
            400, f"At most {MAX_FILTERS} metadata keys can be filtered by.", param="metadata", code="invalid_value"
        )
    for name, value in found.items():
        if not 1 <= len(name) <= 64 or len(value) > 512 or '"' in name or "\x00" in name + value:
            message = "The metadata filter is invalid: keys have 1 to 64 characters and no quotes, values at most 512."
            raise ApiError(400, message, param="metadata", code="invalid_value")
    return found


def own_job(store: JobStore, job_id: str, key: ApiKey) -> JobRecord:
    """Return a job for the key that made it or for an admin's: rows and answers are not for others.

    Raises:
        UnknownJob: The job does not exist, or another key made it.
    """
    return store.get(job_id, None if key.may("admin") else key.id)


@contextmanager
def job_errors(job_id: str = "", kind: Kind = JOBS) -> Iterator[None]:
    """Errors of the store as those of the API. An id of the other kind is unknown."""
    try:
        if job_id and is_readiness(job_id) != kind.readiness:
            raise UnknownJob(job_id)
        yield
    except UnknownJob:
        raise not_found(kind.name, job_id, kind.param) from None
    except UnknownCursor as error:
        raise ApiError(400, error.message, param="after", code="invalid_value") from None
    except IllegalMove as error:
        raise ApiError(400, error.message, code="invalid_job_state") from None
    except IdempotencyConflict as error:
        raise ApiError(400, error.message, param="idempotency-key", code="idempotency_key_reused") from None
