"""/v1/fine_tuning/jobs/{id}/rollouts, /row_rewards, /metrics and /report: what a job did.

For the key that made the job, and for admins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import FileResponse, JSONResponse

from agent_rft.cluster.records.index_tables import Found
from agent_rft.cluster.records.rollout_index import UnknownRollout, UnknownValue
from agent_rft.cluster.records.wanted import Ended, Wanted
from agent_rft.serve.http.auth import Reader
from agent_rft.serve.http.errors import not_ready
from agent_rft.serve.http.pages import LIMIT, After, AsciiJson
from agent_rft.serve.http.schemas.base import Page, Responses
from agent_rft.serve.http.schemas.records import (
    IndexedFile,
    JobMetrics,
    JobRollout,
    JobRolloutSummary,
    JobRowRewards,
    JobSettings,
    RolloutFilters,
    RolloutTokens,
)
from agent_rft.serve.jobs.records import JobRecords, NotIndexed, WholeRollout
from agent_rft.serve.routes.fine_tuning import JobIdPath, job_errors, own_job
from agent_rft.serve.stores.job_states import UnknownCursor
from agent_rft.wire.errors import ApiError

ROLLOUTS_PAGE, METRICS_PAGE, MAX_ROLLOUTS, MAX_METRICS = 20, 20, 100, 1_000
REPORT: Responses = {
    200: {"content": {"text/html": {"schema": {"type": "string"}}}, "description": "The report: one HTML page."}
}
HEADERS = {
    "Content-Security-Policy": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}
"""The page's own policy is narrower: it runs its own scripts only. Here it is in no origin, so it can call no API."""

TEXT = (
    "Only those whose prompt, turns, answer or reason contain this text. A page may end early, or be empty: go on "
    "after `last_id` while `has_more` is true."
)
MAX_TOKENS = 2_000
RolloutLimit = Annotated[int, Query(ge=1, le=MAX_ROLLOUTS, description=LIMIT)]
RolloutPath = Annotated[str, Path(max_length=200)]
MetricLimit = Annotated[int, Query(ge=1, le=MAX_METRICS, description=LIMIT)]
Finite = Annotated[float | None, Query(allow_inf_nan=False)]
Name = Annotated[str | None, Query(max_length=200, description="Only of this file: step-12, test-after.")]
Step = Annotated[int | None, Query(ge=0, le=10**9, description="Only of this step and its validation.")]
Row = Annotated[str | None, Query(max_length=200, description="Only of the row of this id or line.")]


def _wanted(
    file: Name = None,
    step: Step = None,
    row: Row = None,
    trace: Annotated[str | None, Query(max_length=200, description="Only trace ids that begin so.")] = None,
    min_grade: Annotated[Finite, Query(description="Only grades from this one on.")] = None,
    max_grade: Annotated[Finite, Query(description="Only grades up to this one.")] = None,
    min_reward: Annotated[Finite, Query(description="Only rewards from this one on.")] = None,
    max_reward: Annotated[Finite, Query(description="Only rewards up to this one.")] = None,
    finish: Annotated[Ended | None, Query(description="Only those that ended so.")] = None,
    error: Annotated[
        str | None,
        Query(max_length=200, description="Only with this error of a call, or reason of a discard."),
    ] = None,
    tool: Annotated[str | None, Query(max_length=200, description="Only those that called this tool.")] = None,
    text: Annotated[str | None, Query(min_length=1, max_length=200, description=TEXT)] = None,
) -> Wanted:
    return Wanted(
        name=file,
        step=step,
        row=row,
        trace=trace,
        min_grade=min_grade,
        max_grade=max_grade,
        min_reward=min_reward,
        max_reward=max_reward,
        finish=finish,
        error=error,
        tool=tool,
        text=text,
    )


def make_router(records: JobRecords) -> APIRouter:
    """Returns the routes of records: plain functions, so that they run in threads, where files may be read."""
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"], default_response_class=AsciiJson)
    own = partial(own_job, records.store)

    @router.get("/{job_id}/rollouts")
    def rollouts(
        job_id: JobIdPath,
        key: Reader,
        wanted: Annotated[Wanted, Depends(_wanted)],
        order: Annotated[
            Literal["newest", "oldest", "best", "worst"],
            Query(description="By the age of their files, or by grade; then without those that have none."),
        ] = "newest",
        view: Annotated[
            Literal["whole", "summary"], Query(description="`summary`: without request, turns and tokens.")
        ] = "whole",
        after: After = None,
        limit: RolloutLimit = ROLLOUTS_PAGE,
    ) -> Page[JobRollout] | Page[JobRolloutSummary]:
        """List the rollouts of a job, for the key that made it and for admins: not a part of OpenAI's API."""
        with _errors(job_id):
            if view == "summary":
                listing = records.summaries(own(job_id, key), wanted, order, limit, after)
                summaries = [_summary(one) for one in listing.found]
                return Page[JobRolloutSummary].from_entries(summaries, listing.more, listing.last)
            found, listing = records.rollouts(own(job_id, key), wanted, order, limit, after)
        return Page[JobRollout].from_entries([_whole(job_id, one) for one in found], listing.more, listing.last)

    @router.get("/{job_id}/rollouts/{rollout_id}")
    def rollout(job_id: JobIdPath, rollout_id: RolloutPath, key: Reader) -> JobRollout:
        """Return one rollout, for the key that made its job and for admins: not a part of OpenAI's API."""
        with _errors(job_id, missing="rollout_id"):
            return _whole(job_id, records.rollout(own(job_id, key), rollout_id))

    @router.get("/{job_id}/rollouts/{rollout_id}/tokens")
    def tokens(
        job_id: JobIdPath,
        rollout_id: RolloutPath,
        key: Reader,
        segment: Annotated[int, Query(ge=0, le=10**6, description="Number of the segment.")] = 0,
        start: Annotated[int, Query(ge=0, le=10**9, description="The first token in it, such as a turn's.")] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_TOKENS, description="How many tokens at most.")] = 500,
    ) -> RolloutTokens:
        """Return tokens of a rollout with their log-probabilities and policy versions: not a part of OpenAI's API."""
        with _errors(job_id, missing="rollout_id"):
            found = records.tokens(own(job_id, key), rollout_id, segment, start, limit)
        return RolloutTokens(rollout_id=rollout_id, segment=segment, **asdict(found))

    @router.get("/{job_id}/row_rewards")
    def row_rewards(
        job_id: JobIdPath,
        key: Reader,
        file: Name = None,
        step: Step = None,
        row: Row = None,
        order: Annotated[
            Literal["worst", "best", "widest"],
            Query(description="By the mean reward, or first the rows whose rewards differ most."),
        ] = "worst",
        after: After = None,
        limit: RolloutLimit = ROLLOUTS_PAGE,
    ) -> Page[JobRowRewards]:
        """List how the rewards of each row are distributed: not a part of OpenAI's API."""
        with _errors(job_id):
            wanted = Wanted(name=file, step=step, row=row)
            found, more = records.row_rewards(own(job_id, key), wanted, order, limit, after)
        return Page[JobRowRewards].from_entries(found, more)

    @router.get("/{job_id}/rollout_filters")
    def rollout_filters(job_id: JobIdPath, key: Reader) -> RolloutFilters:
        """Return the files, tools and errors that rollouts can be filtered by: not a part of OpenAI's API."""
        with _errors(job_id):
            files, tools, errors = records.filters(own(job_id, key))
        indexed = [IndexedFile.model_validate(file) for file in files]
        return RolloutFilters(files=indexed, tools=tools, errors=errors)

    @router.get("/{job_id}/metrics")
    def metrics(
        job_id: JobIdPath, key: Reader, after: After = None, limit: MetricLimit = METRICS_PAGE
    ) -> Page[JobMetrics]:
        """List the metrics of a job's steps, newest first, for the key that made it and for admins."""
        with _errors(job_id):
            found, more = records.metrics(own(job_id, key), limit, _step(after))
        return Page[JobMetrics].from_entries([step_metrics(job_id, *one) for one in found], more)

    @router.get("/{job_id}/settings", response_class=JSONResponse)
    def settings(job_id: JobIdPath, key: Reader) -> JobSettings:
        """Return the settings that a job runs with, with all defaults, for the key that made it and for admins."""
        with _errors(job_id):
            return JobSettings(fine_tuning_job_id=job_id, **records.settings(own(job_id, key)))

    @router.get("/{job_id}/report", response_class=FileResponse, responses=REPORT)
    def report(job_id: JobIdPath, key: Reader) -> FileResponse:
        """Return the report of a job as one HTML page, for the key that made it and for admins."""
        with _errors(job_id):
            path = records.report(own(job_id, key))
        if path is None:
            message = "The job has no report yet: it begins with the job's first step."
            raise ApiError(404, message, param="fine_tuning_job_id", code="not_found")
        return FileResponse(path, media_type="text/html; charset=utf-8", headers=HEADERS)

    return router


def step_metrics(job_id: str, step: int, values: dict[str, float]) -> JobMetrics:
    return JobMetrics(id=f"step-{step:06d}", fine_tuning_job_id=job_id, step_number=step, metrics=values)


def _step(after: str | None) -> int | None:
    if after is None:
        return None
    number = after.removeprefix("step-")
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise UnknownCursor("after must be an id of this list, such as step-000012")
    return int(number)


def _summary(one: Found) -> JobRolloutSummary:
    return JobRolloutSummary(id=one.id, file=one.name, **asdict(one.summary))


def _whole(job_id: str, whole: WholeRollout) -> JobRollout:
    one, request, rollout = whole
    return JobRollout(id=one.id, fine_tuning_job_id=job_id, file=one.name, request=request, rollout=rollout)


@contextmanager
def _errors(job_id: str, missing: str = "after") -> Iterator[None]:
    """`missing` is the parameter with the id of a rollout: a cursor, or that of the rollout itself."""
    try:
        with job_errors(job_id):
            yield
    except UnknownRollout as error:
        status, code = (400, "invalid_value") if missing == "after" else (404, "not_found")
        raise ApiError(status, error.message, param=missing, code=code) from None
    except UnknownValue as error:
        raise ApiError(400, error.message, param=error.field, code="invalid_value") from None
    except NotIndexed as error:
        raise not_ready(error, 5) from None
