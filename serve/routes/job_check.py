"""POST /v1/fine_tuning/jobs/check: checks a job request without creating the job."""

from __future__ import annotations

import asyncio
from typing import Annotated, Protocol

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from agent_rft.errors import InvalidJob, Problem, RftError
from agent_rft.serve.http.auth import Writer
from agent_rft.serve.http.client_limits import OwnerQuota
from agent_rft.serve.http.error_responses import make_too_many_error
from agent_rft.serve.http.schemas.job_schemas import JobCheck, JobProblem
from agent_rft.serve.jobs.client_errors import hide_details
from agent_rft.serve.jobs.job_service import JobService
from agent_rft.serve.jobs.processes.request_check import CheckRequest
from agent_rft.serve.routes.job_routes import JobBody
from agent_rft.serve.routes.readiness_routes import RolloutsPerRow
from agent_rft.wire.api_errors import ApiError

MAX_CHECKS = 2
"""Maximum concurrent checks; one key can run at most half of them. Each check is a process that reads full files."""
CHECK_S = 120.0

Files = Annotated[bool, Query(description="If false, only the schema of the request is checked, which is fast.")]
Samples = Annotated[
    RolloutsPerRow | None,
    Query(description="Rollouts per row, if the request is for a readiness check."),
]


class JobChecker(Protocol):
    """Interface for checking job requests: one method of `agent_rft.serve.jobs.job_manager.Launcher`."""

    async def check_request(self, draft: CheckRequest) -> list[Problem]: ...


def make_router(service: JobService, checker: JobChecker, check_s: float = CHECK_S) -> APIRouter:
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"])
    checks = OwnerQuota(MAX_CHECKS)

    @router.post("/check")
    async def check_job(body: JobBody, key: Writer, files: Files = True, samples: Samples = None) -> JobCheck:
        """Check a job request, without creating the job and without calling tools or graders."""
        try:
            draft = await run_in_threadpool(service.prepare_check, body, samples)
        except InvalidJob as error:
            return _build_check([hide_details(problem, None, {}) for problem in error.problems])
        if not files:
            return _build_check([])
        with checks.hold(key.id, _too_many_checks_error()) as take:
            take(1)
            try:
                async with asyncio.timeout(check_s):
                    return _build_check(await checker.check_request(draft))
            except TimeoutError:
                message = (
                    f"The check did not finish within {check_s:g} s. Use fewer or smaller rows, or create the job: its "
                    "check may take longer."
                )
                raise ApiError(400, message, code="check_failed") from None
            except RftError as error:
                raise ApiError(400, error.public_message, code="check_failed") from None

    return router


def _too_many_checks_error() -> ApiError:
    message = "Too many checks are in progress, for this API key or in total. Try again in a moment."
    return make_too_many_error(message, "too_many_checks", 5)


def _build_check(problems: list[Problem]) -> JobCheck:
    return JobCheck(valid=not problems, problems=[JobProblem.model_validate(problem) for problem in problems])
