"""/v1/fine_tuning/jobs/{id}/evaluations and /v1/fine_tuning/comparison: evaluations of jobs and their comparison."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from agent_rft.errors import UserError
from agent_rft.serve.http.auth import Reader
from agent_rft.serve.http.client_limits import OwnerQuota
from agent_rft.serve.http.error_responses import make_not_ready_error, make_user_api_error
from agent_rft.serve.http.pagination import AsciiJson
from agent_rft.serve.http.schemas.comparison_schemas import ComparisonBody, EvaluationList, JobEvaluation
from agent_rft.serve.jobs.job_comparisons import ComparisonSide, JobComparisons, NoSuchEvaluation
from agent_rft.serve.routes.job_routes import JobIdPath, get_own_job, job_errors
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.wire.api_errors import ApiError

MAX_SIDES = 4
MAX_COMPARISONS = 2
"""Maximum concurrent comparisons; one key can run half of them. Each one reads complete files in a server thread."""

Sides = Annotated[
    list[Annotated[str, Query(max_length=200)]],
    Query(
        min_length=2,
        max_length=MAX_SIDES,
        description="Evaluation to compare: `JOB:EVALUATION`, such as ftjob-1:test-before, or only `JOB`. A job id "
        "alone selects the job's newest evaluation of the compared data file. This is the file of the first named "
        "evaluation or, if only job ids are given, the first of test, validation and training file that all jobs have "
        "evaluated. The first evaluation is the baseline.",
    ),
]


def make_router(store: JobStore, comparisons: JobComparisons) -> APIRouter:
    """Return the router. Its routes are plain functions, so they run in threads and may read files."""
    router = APIRouter(prefix="/fine_tuning", tags=["fine-tuning"], default_response_class=AsciiJson)
    running = OwnerQuota(MAX_COMPARISONS)

    @router.get("/jobs/{job_id}/evaluations")
    def list_evaluations(job_id: JobIdPath, key: Reader) -> EvaluationList:
        """List the evaluations of a job, for its owner and admins. Not part of OpenAI's API."""
        with job_errors(job_id):
            get_own_job(store, job_id, key)
        found = comparisons.list_evaluations(job_id)
        return EvaluationList(data=[JobEvaluation(fine_tuning_job_id=job_id, **one) for one in found])

    @router.get("/comparison")
    def compare_evaluations(side: Sides, key: Reader) -> ComparisonBody:
        """Compare evaluations row by row, like `agent-rft compare`. Not part of OpenAI's API."""
        sides = [ComparisonSide.parse(text) for text in side]
        for one in sides:
            with job_errors(one.job_id):
                get_own_job(store, one.job_id, key)
        try:
            with running.hold(key.id, make_not_ready_error("another comparison is running", 2)) as take:
                take(1)
                return ComparisonBody(**comparisons.compare(sides))
        except NoSuchEvaluation as error:
            raise ApiError(400, error.message, param="side", code="invalid_value") from None
        except UserError as error:
            raise make_user_api_error(error, "side") from None

    return router
