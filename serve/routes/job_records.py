"""/v1/fine_tuning/jobs/{id}/rollouts, /row_rewards, /metrics, /settings and /report: the records of a job.

Only the job's owner and admins can read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import FileResponse, JSONResponse

from agent_rft.cluster.records.index_tables import IndexedRollout
from agent_rft.cluster.records.rollout_filter import RecordedFinish, RolloutFilter
from agent_rft.cluster.records.rollout_index import UnknownRollout, UnknownValue
from agent_rft.serve.http.auth import Reader
from agent_rft.serve.http.client_limits import OwnerQuota
from agent_rft.serve.http.error_responses import make_not_ready_error
from agent_rft.serve.http.pagination import LIMIT, After, AsciiJson
from agent_rft.serve.http.schemas.base import Page, Responses
from agent_rft.serve.http.schemas.record_schemas import (
    IndexedFile,
    JobMetrics,
    JobRollout,
    JobRolloutSummary,
    JobRowRewards,
    JobSettings,
    RolloutFilters,
    RolloutTokens,
)
from agent_rft.serve.jobs.owner_records import JobRecords, NotIndexed, WholeRollout
from agent_rft.serve.routes.job_routes import JobIdPath, get_own_job, job_errors
from agent_rft.serve.stores.job_states import UnknownCursor
from agent_rft.wire.api_errors import ApiError

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
"""Headers of the report. `sandbox` gives the page an opaque origin, so that its scripts cannot call the API."""

TEXT = (
    "Only rollouts whose prompt, turns, answer or discard reason contains this text. A page may be short or "
    "empty; continue after `last_id` while `has_more` is true."
)
MAX_TOKENS = 2_000
MAX_SEARCHES = 4
"""Maximum concurrent text searches; one key can run at most half of them. Each search occupies a server thread."""
RolloutLimit = Annotated[int, Query(ge=1, le=MAX_ROLLOUTS, description=LIMIT)]
RolloutPath = Annotated[str, Path(max_length=200)]
MetricLimit = Annotated[int, Query(ge=1, le=MAX_METRICS, description=LIMIT)]
Finite = Annotated[float | None, Query(allow_inf_nan=False)]
Name = Annotated[
    str | None, Query(max_length=200, description="Only rollouts in this file, such as step-12 or test-after.")
]
Step = Annotated[int | None, Query(ge=0, le=10**9, description="Only rollouts of this step and of its validation.")]
Row = Annotated[str | None, Query(max_length=200, description="Only rollouts of the row with this id or line number.")]


def _parse_filter(
    file: Name = None,
    step: Step = None,
    row: Row = None,
    trace: Annotated[
        str | None, Query(max_length=200, description="Only rollouts whose trace id starts with this text.")
    ] = None,
    min_grade: Annotated[Finite, Query(description="Minimum grade.")] = None,
    max_grade: Annotated[Finite, Query(description="Maximum grade.")] = None,
    min_reward: Annotated[Finite, Query(description="Minimum reward.")] = None,
    max_reward: Annotated[Finite, Query(description="Maximum reward.")] = None,
    finish: Annotated[RecordedFinish | None, Query(description="Only rollouts that ended for this reason.")] = None,
    error: Annotated[
        str | None,
        Query(max_length=200, description="Only rollouts with this call error or discard reason."),
    ] = None,
    tool: Annotated[str | None, Query(max_length=200, description="Only rollouts that called this tool.")] = None,
    text: Annotated[str | None, Query(min_length=1, max_length=200, description=TEXT)] = None,
) -> RolloutFilter:
    return RolloutFilter(
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
    """Return the router. Its routes are plain functions, so they run in threads and may read files."""
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"], default_response_class=AsciiJson)
    get_job = partial(get_own_job, records.store)
    searches = OwnerQuota(MAX_SEARCHES)

    @router.get("/{job_id}/rollouts")
    def list_rollouts(
        job_id: JobIdPath,
        key: Reader,
        rollout_filter: Annotated[RolloutFilter, Depends(_parse_filter)],
        order: Annotated[
            Literal["newest", "oldest", "best", "worst"],
            Query(description="Order by file age or by grade. Ordering by grade omits rollouts without a grade."),
        ] = "newest",
        view: Annotated[
            Literal["whole", "summary"], Query(description="`summary` omits the request, turns and tokens.")
        ] = "whole",
        after: After = None,
        limit: RolloutLimit = ROLLOUTS_PAGE,
    ) -> Page[JobRollout] | Page[JobRolloutSummary]:
        """List the rollouts of a job, for its owner and admins. Not part of OpenAI's API."""
        with _record_errors(job_id), searches.hold(key.id, _too_many_searches_error()) as take:
            take(int(rollout_filter.text is not None))
            if view == "summary":
                listing = records.summaries(get_job(job_id, key), rollout_filter, order, limit, after)
                summaries = [_build_summary(one) for one in listing.found]
                return Page[JobRolloutSummary].from_entries(summaries, listing.has_more, listing.last)
            found, listing = records.rollouts(get_job(job_id, key), rollout_filter, order, limit, after)
        return Page[JobRollout].from_entries(
            [_build_rollout(job_id, one) for one in found], listing.has_more, listing.last
        )

    @router.get("/{job_id}/rollouts/{rollout_id}")
    def get_rollout(job_id: JobIdPath, rollout_id: RolloutPath, key: Reader) -> JobRollout:
        """Return a rollout of a job, for the job's owner and admins. Not part of OpenAI's API."""
        with _record_errors(job_id, id_param="rollout_id"):
            return _build_rollout(job_id, records.rollout(get_job(job_id, key), rollout_id))

    @router.get("/{job_id}/rollouts/{rollout_id}/tokens")
    def list_tokens(
        job_id: JobIdPath,
        rollout_id: RolloutPath,
        key: Reader,
        segment: Annotated[int, Query(ge=0, le=10**6, description="Index of the segment.")] = 0,
        start: Annotated[int, Query(ge=0, le=10**9, description="Index of the first token in the segment.")] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_TOKENS, description="Maximum number of tokens.")] = 500,
    ) -> RolloutTokens:
        """List a segment's tokens with log-probabilities and policy versions. Not part of OpenAI's API."""
        with _record_errors(job_id, id_param="rollout_id"):
            found = records.tokens(get_job(job_id, key), rollout_id, segment, start, limit)
        return RolloutTokens(rollout_id=rollout_id, segment=segment, **asdict(found))

    @router.get("/{job_id}/row_rewards")
    def list_row_rewards(
        job_id: JobIdPath,
        key: Reader,
        file: Name = None,
        step: Step = None,
        row: Row = None,
        order: Annotated[
            Literal["worst", "best", "widest"],
            Query(description="Order by mean reward; `widest` orders by the range of a row's rewards."),
        ] = "worst",
        after: After = None,
        limit: RolloutLimit = ROLLOUTS_PAGE,
    ) -> Page[JobRowRewards]:
        """List the rows of a job, with the distribution of each row's rewards. Not part of OpenAI's API."""
        with _record_errors(job_id):
            rollout_filter = RolloutFilter(name=file, step=step, row=row)
            found, more = records.row_rewards(get_job(job_id, key), rollout_filter, order, limit, after)
        return Page[JobRowRewards].from_entries(found, more)

    @router.get("/{job_id}/rollout_filters")
    def list_rollout_filters(job_id: JobIdPath, key: Reader) -> RolloutFilters:
        """Return the files, tools and errors by which rollouts can be filtered. Not part of OpenAI's API."""
        with _record_errors(job_id):
            files, tools, errors = records.filters(get_job(job_id, key))
        indexed = [IndexedFile.model_validate(file) for file in files]
        return RolloutFilters(files=indexed, tools=tools, errors=errors)

    @router.get("/{job_id}/metrics")
    def list_metrics(
        job_id: JobIdPath, key: Reader, after: After = None, limit: MetricLimit = METRICS_PAGE
    ) -> Page[JobMetrics]:
        """List the metrics of a job's steps, newest first, for its owner and admins. Not part of OpenAI's API."""
        with _record_errors(job_id):
            found, more = records.metrics(get_job(job_id, key), limit, _parse_step(after))
        return Page[JobMetrics].from_entries([step_metrics(job_id, *one) for one in found], more)

    @router.get("/{job_id}/settings", response_class=JSONResponse)
    def get_settings(job_id: JobIdPath, key: Reader) -> JobSettings:
        """Return a job's settings with all defaults, for its owner and admins. Not part of OpenAI's API."""
        with _record_errors(job_id):
            return JobSettings(fine_tuning_job_id=job_id, **records.settings(get_job(job_id, key)))

    @router.get("/{job_id}/report", response_class=FileResponse, responses=REPORT)
    def get_report(job_id: JobIdPath, key: Reader) -> FileResponse:
        """Return a job's report as an HTML page, for its owner and admins. Not part of OpenAI's API."""
        with _record_errors(job_id):
            path = records.report(get_job(job_id, key))
        if path is None:
            message = "The job has no report yet. It gets one when it starts."
            raise ApiError(404, message, param="fine_tuning_job_id", code="not_found")
        return FileResponse(path, media_type="text/html; charset=utf-8", headers=HEADERS)

    return router


def step_metrics(job_id: str, step: int, values: dict[str, float]) -> JobMetrics:
    return JobMetrics(id=f"step-{step:06d}", fine_tuning_job_id=job_id, step_number=step, metrics=values)


def _parse_step(after: str | None) -> int | None:
    if after is None:
        return None
    number = after.removeprefix("step-")
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise UnknownCursor("after must be the id of an entry of this list, such as step-000012")
    return int(number)


def _build_summary(one: IndexedRollout) -> JobRolloutSummary:
    return JobRolloutSummary(id=one.id, file=one.name, **asdict(one.summary))


def _build_rollout(job_id: str, whole: WholeRollout) -> JobRollout:
    one, request, rollout = whole
    return JobRollout(id=one.id, fine_tuning_job_id=job_id, file=one.name, request=request, rollout=rollout)


@contextmanager
def _record_errors(job_id: str, id_param: str = "after") -> Iterator[None]:
    """Context manager that converts errors from reading records to API errors.

    `id_param` is the request parameter with the rollout id: `after` or `rollout_id`.
    """
    try:
        with job_errors(job_id):
            yield
    except UnknownRollout as error:
        status, code = (400, "invalid_value") if id_param == "after" else (404, "not_found")
        raise ApiError(status, error.message, param=id_param, code=code) from None
    except UnknownValue as error:
        raise ApiError(400, error.message, param=error.field, code="invalid_value") from None
    except NotIndexed as error:
        raise make_not_ready_error(error.message, 5) from None


def _too_many_searches_error() -> ApiError:
    return make_not_ready_error("too many text searches are running, for this API key or in total", 5)
