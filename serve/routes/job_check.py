"""POST /v1/fine_tuning/jobs/check: what is wrong with a request for a job, before it is created."""

from __future__ import annotations

import asyncio
from typing import Annotated, Protocol

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from agent_rft.errors import InvalidJob, Problem, RftError
from agent_rft.serve.http.auth import Writer
from agent_rft.serve.http.client_limits import Shares
from agent_rft.serve.http.errors import too_many
from agent_rft.serve.http.schemas.jobs import JobCheck, JobProblem
from agent_rft.serve.jobs.problems import public
from agent_rft.serve.jobs.processes.draft import Draft
from agent_rft.serve.jobs.service import JobService
from agent_rft.serve.routes.fine_tuning import JobBody
from agent_rft.serve.routes.readiness import Draws
from agent_rft.wire.errors import ApiError

MAX_CHECKS = 2
"""Checks at a time, half of them of one key: each is a process that reads whole files."""
CHECK_S = 120.0

Files = Annotated[bool, Query(description="false: only the form of the request, which takes no time.")]
Look = Annotated[
    Draws | None, Query(description="Check it for a look before training (readiness) with so many draws of each row.")
]


class Checker(Protocol):
    """The part of agent_rft.serve.jobs.manager.Launcher that is needed here."""

    async def check(self, draft: Draft) -> list[Problem]: ...


def make_router(service: JobService, checker: Checker, check_s: float = CHECK_S) -> APIRouter:
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"])
    checks = Shares(MAX_CHECKS)

    @router.post("/check")
    async def check(body: JobBody, key: Writer, files: Files = True, samples: Look = None) -> JobCheck:
        """Check a request for a job without creating it: its form, files, model, tools and graders; calls nothing."""
        try:
            draft = await run_in_threadpool(service.draft, body, samples)
        except InvalidJob as error:
            return _answer([public(problem, None, {}) for problem in error.problems])
        if not files:
            return _answer([])
        with checks.of(key.id, _busy()) as take:
            take(1)
            try:
                async with asyncio.timeout(check_s):
                    return _answer(await checker.check(draft))
            except TimeoutError:
                message = (
                    f"The check did not finish within {check_s:g} s: use fewer or smaller rows, or create the job."
                )
                raise ApiError(400, message, code="validation_failed") from None
            except RftError as error:
                raise ApiError(400, error.public, code="validation_failed") from None

    return router


def _busy() -> ApiError:
    message = "Too many checks are already in progress, of this API key or of all; try again in a moment."
    return too_many(message, "too_many_checks", 5)


def _answer(problems: list[Problem]) -> JobCheck:
    return JobCheck(valid=not problems, problems=[JobProblem.model_validate(problem) for problem in problems])
