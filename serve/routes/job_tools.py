"""/v1/fine_tuning/jobs/{id}/tool/run: calls a tool of a job once, with the job's secret headers."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from agent_rft.actors.endpoints.signing import create_signer
from agent_rft.actors.tools.dispatcher import Dispatcher
from agent_rft.errors import UserError
from agent_rft.serve.http.auth import Writer, check_may_change
from agent_rft.serve.http.error_responses import make_user_api_error
from agent_rft.serve.http.grader_trials import TrialFactory
from agent_rft.serve.http.schemas.grader_schemas import ToolOutput
from agent_rft.serve.jobs.job_service import JobService
from agent_rft.serve.routes.job_routes import JobIdPath, job_errors
from agent_rft.serve.routes.trial_routes import ToolCallBody, call_once
from agent_rft.serve.stores.key_store import ApiKey
from agent_rft.spec.job import Reinforcement
from agent_rft.wire.api_errors import ApiError


def make_router(service: JobService, trials: TrialFactory) -> APIRouter:
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"])

    @router.post("/{job_id}/tool/run")
    async def run_job_tool(job_id: JobIdPath, body: ToolCallBody, key: Writer) -> ToolOutput:
        """Call one of a job's tools once, as a rollout would, and return the result that a model would see.

        The call may take at most ten minutes, even if the tool's `timeout_s` is longer. Not part of OpenAI's API.
        """
        found = await asyncio.to_thread(_load_tool_settings, service, job_id, key)
        async with trials.slot(key)():
            tools = [tool.limit_to_trial() for tool in found.tools]
            dispatcher = Dispatcher(tools, trials.operator, signer=create_signer(found))
            return await call_once(body, dispatcher, "name")

    return router


def _load_tool_settings(service: JobService, job_id: str, key: ApiKey) -> Reinforcement:
    """Return the `method.reinforcement` settings of a job, which contain its tools.

    Raises:
        ApiError: Access is denied, the job has no tools, or its secrets cannot be decrypted.
    """
    with job_errors(job_id):
        job = service.store.get(job_id)
    check_may_change(key, job.owner, "job")
    try:
        found = service.decrypt(job).method.reinforcement
    except UserError as error:
        raise make_user_api_error(error, "fine_tuning_job_id") from None
    if found is None or not found.tools:
        raise ApiError(400, "The job has no tools, because method.reinforcement.tools is empty.", code="invalid_value")
    return found
