"""/v1/fine_tuning/jobs/{id}/evaluations and /v1/fine_tuning/comparison: what changed between evaluations of jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse

from cluster.jobs.comparisons import Comparing, Comparisons, NoSuchEvaluation, Wanted
from cluster.stores.job_store import JobStore
from cluster.stores.keys import ApiKey
from serve.http.auth import Reader
from serve.http.errors import ApiError, of_user_error
from serve.http.pages import AsciiJson
from serve.http.schemas.base import answers
from serve.http.schemas.comparison import ComparisonBody, EvaluationList
from serve.routes.fine_tuning import job_errors
from trainer.errors import UserError

MAX_SIDES = 4

Sides = Annotated[
    list[Annotated[str, Query(max_length=200)]],
    Query(
        min_length=2,
        max_length=MAX_SIDES,
        description="`JOB:EVALUATION`, such as ftjob-1:test-before, or a job's id for its newest one of the file "
        "that all sides have; others are compared with the first.",
    ),
]


def make_router(store: JobStore, comparisons: Comparisons) -> APIRouter:
    """Returns the routes: plain functions, so that they run in threads, where files may be read."""
    router = APIRouter(prefix="/fine_tuning", tags=["fine-tuning"])

    def check_own(job_id: str, key: ApiKey) -> None:
        """A job's rows are for the key that made it, and for admins."""
        with job_errors(job_id):
            store.get(job_id, None if key.may("admin") else key.id)

    @router.get("/jobs/{job_id}/evaluations", response_model=None, responses=answers(EvaluationList))
    def evaluations(job_id: Annotated[str, Path(max_length=100)], key: Reader) -> JSONResponse:
        """List the evaluations of a job, for the key that made it and for admins: not a part of OpenAI's API."""
        check_own(job_id, key)
        kind = {"object": "fine_tuning.job.evaluation", "fine_tuning_job_id": job_id}
        data = [kind | found for found in comparisons.evaluations(job_id)]
        return AsciiJson({"object": "list", "data": data})

    @router.get("/comparison", response_model=None, responses=answers(ComparisonBody))
    def compare(side: Sides, key: Reader) -> JSONResponse:
        """Compare evaluations row by row, as `agent-rft compare` does: not a part of OpenAI's API."""
        wanted = [Wanted.of(text) for text in side]
        for one in wanted:
            check_own(one.job_id, key)
        try:
            found: dict[str, Any] = comparisons.compare(wanted)
        except NoSuchEvaluation as error:
            raise ApiError(400, error.message, param="side", code="invalid_value") from None
        except UserError as error:
            raise of_user_error(error, "side") from None
        except Comparing as error:
            headers = {"Retry-After": "2"}
            message = f"Not ready: {error.message}. Try again in some seconds."
            raise ApiError(503, message, code="not_ready", type="server_error", headers=headers) from None
        return AsciiJson({"object": "fine_tuning.comparison", **found})

    return router
