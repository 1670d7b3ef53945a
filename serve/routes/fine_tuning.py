"""/v1/fine_tuning/jobs: create, list, follow and control jobs; every key sees all jobs and changes its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request
from fastapi.responses import JSONResponse

from cluster.jobs.logs import VALIDATION, Output
from cluster.jobs.request import Described, WireJob
from cluster.jobs.service import JobService
from cluster.stores.job_progress import Progress
from cluster.stores.job_states import IdempotencyConflict, IllegalMove, UnknownCursor, UnknownJob
from cluster.stores.job_store import is_readiness
from cluster.stores.job_tables import CheckpointRecord, EventRecord, JobError, JobRecord
from serve.http.audit import made
from serve.http.auth import Admin, Reader, Writer, check_may_change
from serve.http.errors import ApiError, not_found
from serve.http.pages import AsciiJson, PageQuery, page, page_query
from serve.http.schemas.base import Page, answers
from serve.http.schemas.jobs import Checkpoint, Job, JobEventBody, JobLog

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
JobPages = Annotated[PageQuery, Depends(page_query(JOBS_PAGE, MAX_PAGE))]
EventPages = Annotated[PageQuery, Depends(page_query(EVENTS_PAGE, MAX_PAGE))]
Attempt = Annotated[
    int | None, Query(ge=0, description="Only this attempt: 0 is the validation, drivers are numbered from 1.")
]
Include = Annotated[
    Literal["progress"] | None,
    Query(description="progress: also say how far each job is, which takes longer. Not a part of OpenAI's API."),
]
CheckpointPages = Annotated[PageQuery, Depends(page_query(CHECKPOINTS_PAGE, MAX_PAGE))]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a path names: jobs that train, or looks at jobs before training."""

    name: str
    param: str
    readiness: bool


JOBS = Kind("fine-tuning job", "fine_tuning_job_id", readiness=False)
READINESS = Kind("readiness", "readiness_id", readiness=True)


def make_router(service: JobService, organization: str = "local") -> APIRouter:
    """Returns the routes of jobs: plain functions, so that they run in threads, where database calls may block."""
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"])
    store = service.store

    def shown(job: JobRecord, include: Literal["progress"] | None) -> dict[str, Any]:
        return job_object(job, organization, store.progress(job) if include else None)

    @router.post("", response_model=None, responses=answers(Job))
    def create(
        request: Request,
        body: JobBody,
        key: Writer,
        idempotency_key: IdempotencyKey = None,
        retry: Retry = None,
    ) -> dict[str, Any]:
        """Create a fine-tuning job; a retried request does not create a second one."""
        with job_errors():
            job = service.create(body, key.id, idempotency_key=idempotency_key, retry=retry)
        made(request, job.id)
        return job_object(job, organization)

    @router.get("", response_model=None, responses=answers(Page[Job]))
    def list_jobs(request: Request, key: Reader, pages: JobPages, include: Include = None) -> JSONResponse:
        """List jobs, newest first; `metadata[k]=v` selects the jobs with this metadata."""
        with job_errors():
            found, more = store.jobs(None, after=pages.after, limit=pages.limit, labels=_labels(request))
        return page([shown(job, include) for job in found], more)

    @router.get("/{job_id}", response_model=None, responses=answers(Job))
    def get_job(job_id: JobIdPath, key: Reader, include: Include = None) -> dict[str, Any]:
        """Return one job."""
        with job_errors(job_id):
            return shown(store.get(job_id), include)

    @router.post("/{job_id}/cancel", response_model=None, responses=answers(Job))
    def cancel(job_id: JobIdPath, key: Writer) -> dict[str, Any]:
        """Cancel a job at once, in any state; its checkpoints are kept."""
        with job_errors(job_id):
            check_may_change(key, store.get(job_id).owner, "job")
            return job_object(service.cancel(job_id), organization)

    @router.post("/{job_id}/pause", response_model=None, responses=answers(Job))
    def pause(job_id: JobIdPath, key: Writer) -> dict[str, Any]:
        """Pause a running job: it saves a checkpoint and releases its resources."""
        with job_errors(job_id):
            check_may_change(key, store.get(job_id).owner, "job")
            return job_object(service.pause(job_id), organization)

    @router.post("/{job_id}/resume", response_model=None, responses=answers(Job))
    def resume(job_id: JobIdPath, key: Writer) -> dict[str, Any]:
        """Queue a paused job again; it resumes from its checkpoint."""
        with job_errors(job_id):
            check_may_change(key, store.get(job_id).owner, "job")
            return job_object(service.resume(job_id), organization)

    @router.get("/{job_id}/events", response_model=None, responses=answers(Page[JobEventBody]))
    def events(job_id: JobIdPath, key: Reader, pages: EventPages) -> JSONResponse:
        """List the events of a job, newest first."""
        with job_errors(job_id):
            found, more = store.events(job_id, after=pages.after, limit=pages.limit)
        return page([event_object(event) for event in found], more, AsciiJson)

    @router.get("/{job_id}/checkpoints", response_model=None, responses=answers(Page[Checkpoint]))
    def checkpoints(job_id: JobIdPath, key: Reader, pages: CheckpointPages) -> JSONResponse:
        """List the checkpoints of a job, newest first; each can be called as a model."""
        with job_errors(job_id):
            found, more = store.checkpoints(job_id, after=pages.after, limit=pages.limit)
        return page([checkpoint_object(checkpoint) for checkpoint in found], more)

    @router.get("/{job_id}/log", response_model=None, responses=answers(JobLog))
    def log(job_id: JobIdPath, key: Admin, attempt: Attempt = None) -> dict[str, Any]:
        """Return the ends of the outputs of a job's processes, for admins: not a part of OpenAI's API."""
        with job_errors(job_id, READINESS if is_readiness(job_id) else JOBS):
            error, outputs = service.log(job_id)
        shown = [output_object(output) for output in outputs if attempt in (None, output.attempt)]
        return {"object": "fine_tuning.job.log", "job_id": job_id, "error": error or None, "outputs": shown}

    return router


# -- wire objects ------------------------------------------------------------------------------------------------------


def job_object(job: JobRecord, organization: str, progress: Progress | None = None) -> dict[str, Any]:
    """Returns a job in the wire form, with every key: clients' types require some even if they are null."""
    part = job.method["type"]
    return {
        "id": job.id,
        "object": "fine_tuning.job",
        "created_at": int(job.created_at),
        "finished_at": seconds(job.finished_at),
        "estimated_finish": seconds(job.estimated_finish) if job.status == "running" else None,
        "model": job.model,
        "fine_tuned_model": job.fine_tuned_model,
        "organization_id": organization,
        "status": job.status,
        "error": failure_object(job.error),
        "hyperparameters": job.method[part]["hyperparameters"],
        "method": job.method,
        "model_options": job.model_options,
        "training_file": job.training_file,
        "validation_file": job.validation_file,
        "test_file": job.test_file,
        "result_files": list(job.result_files),
        "trained_tokens": job.trained_tokens,
        "seed": job.seed,
        "suffix": job.suffix,
        "metadata": job.labels,
        "integrations": job.integrations or [],
        "progress": None if progress is None else asdict(progress),
    }


def event_object(event: EventRecord) -> dict[str, Any]:
    return {
        "id": event.id,
        "object": "fine_tuning.job.event",
        "created_at": int(event.created_at),
        "level": event.level,
        "type": event.type,
        "message": event.message,
        "data": event.data,
    }


def output_object(output: Output) -> dict[str, Any]:
    return {
        "process": "validation" if output.attempt == VALIDATION else "driver",
        "attempt": output.attempt,
        "written_at": int(output.at),
        "text": output.text,
    }


def checkpoint_object(checkpoint: CheckpointRecord) -> dict[str, Any]:
    return {
        "id": checkpoint.id,
        "object": "fine_tuning.job.checkpoint",
        "created_at": int(checkpoint.created_at),
        "fine_tuned_model_checkpoint": checkpoint.model,
        "fine_tuning_job_id": checkpoint.job_id,
        "step_number": checkpoint.step,
        "metrics": checkpoint.metrics,
    }


def failure_object(error: JobError | None) -> dict[str, Any] | None:
    return None if error is None else {"code": error.code, "message": error.message, "param": error.param}


def seconds(time: float | None) -> int | None:
    return None if time is None else int(time)


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
