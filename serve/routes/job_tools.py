"""/v1/fine_tuning/jobs/{id}/tool/run: one call of a job's own tool, with the headers that only the job knows."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from actors.endpoints.signing import signer_of
from actors.tools.dispatcher import Dispatcher
from cluster.jobs.service import JobService
from cluster.stores.keys import ApiKey
from serve.http.auth import Writer, check_may_change
from serve.http.errors import ApiError, of_user_error
from serve.http.schemas.graders import ToolOutput
from serve.http.trials import Trials
from serve.routes.fine_tuning import JobIdPath, job_errors
from serve.routes.graders import ToolCallBody, call_once
from trainer.errors import UserError
from trainer.spec.job import Reinforcement


def make_router(service: JobService, trials: Trials) -> APIRouter:
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"])

    @router.post("/{job_id}/tool/run")
    async def run_tool(job_id: JobIdPath, body: ToolCallBody, key: Writer) -> ToolOutput:
        """Call one of the job's tools once, as a rollout would, and return what the model would see.

        The call ends after ten minutes, even if the tool's `timeout_s` is longer.
        """
        found = await asyncio.to_thread(_tools, service, job_id, key)
        async with trials.slot(key)():
            tools = [tool.for_trial() for tool in found.tools]
            dispatcher = Dispatcher(tools, trials.operator, signer=signer_of(found))
            return await call_once(body, dispatcher, "name")

    return router


def _tools(service: JobService, job_id: str, key: ApiKey) -> Reinforcement:
    """The part of a job that has its tools, for a key that may change the job.

    Raises:
        ApiError: the key may not, the job has no tools, or this server cannot open it.
    """
    with job_errors(job_id):
        job = service.store.get(job_id)
    check_may_change(key, job.owner, "job")
    try:
        found = service.opened(job).method.reinforcement
    except UserError as error:
        raise of_user_error(error, "fine_tuning_job_id") from None
    if found is None or not found.tools:
        raise ApiError(400, "The job has no tools: method.reinforcement.tools is empty.", code="invalid_value")
    return found
