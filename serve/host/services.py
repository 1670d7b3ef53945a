"""The services behind the routes: the job manager and the served models of one cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from fastapi import APIRouter

from agent_rft.serve.console import console_session
from agent_rft.serve.host.server_state import ServerState
from agent_rft.serve.http.client_limits import DEADLINES, Deadlines
from agent_rft.serve.http.grader_trials import TrialFactory
from agent_rft.serve.inference import chat, responses
from agent_rft.serve.inference.model_server import ModelHosting, ModelServer, ServedModels
from agent_rft.serve.jobs.job_comparisons import JobComparisons
from agent_rft.serve.jobs.job_logs import JobLogs
from agent_rft.serve.jobs.job_manager import JobManager, Launcher, ManagerConfig
from agent_rft.serve.jobs.job_service import JobService
from agent_rft.serve.jobs.owner_records import JobRecords
from agent_rft.serve.routes import (
    comparison_routes,
    file_routes,
    job_check,
    job_live_status,
    job_records,
    job_routes,
    job_stream,
    job_tools,
    key_routes,
    model_routes,
    readiness_routes,
    trial_routes,
)
from agent_rft.serve.routes.job_check import JobChecker
from agent_rft.serve.routes.job_stream import StreamLimits
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.spec.operator.operator_config import OperatorConfig


def make_routers(
    state: ServerState,
    operator: OperatorConfig,
    jobs: JobService,
    checker: JobChecker,
    served: ModelServer,
    deadlines: Deadlines = DEADLINES,
    stream_limits: StreamLimits | None = None,
) -> Sequence[APIRouter]:
    """Return all routers of the API; `stream_limits` sets the limits of job streams."""
    store, trials, runs = jobs.store, TrialFactory(operator), state.folder / "runs"
    return (
        file_routes.make_router(state.files, operator.limits.max_uploads, deadlines),
        job_routes.make_router(jobs),
        job_check.make_router(jobs, checker),
        job_live_status.make_router(store, runs),
        job_records.make_router(JobRecords(store, runs)),
        comparison_routes.make_router(store, JobComparisons(runs)),
        job_tools.make_router(jobs, trials),
        job_stream.make_router(store, runs, stream_limits=stream_limits),
        readiness_routes.make_router(jobs),
        trial_routes.make_router(trials),
        model_routes.make_router(state.models),
        key_routes.make_router(state.keys),
        chat.make_router(served, trials),
        responses.make_router(served, trials, state.secrets),
        console_session.make_router(state.sessions, public_url=operator.public_url),
    )


class Services:
    """Services of one API replica, with their routers. Call `run` in the event loop that serves the routers."""

    def __init__(
        self,
        state: ServerState,
        operator: OperatorConfig,
        launcher: Launcher,
        hosting: ModelHosting,
        deadlines: Deadlines = DEADLINES,
    ) -> None:
        registry = state.models
        config = ManagerConfig(max_running=operator.jobs.max_running)
        store, logs = JobStore(state.database), JobLogs(state.folder)
        self._manager = JobManager(store, launcher, logs, config)
        self._jobs = JobService(store, registry, state.files, state.secrets, operator, logs, wake=self._wake)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._models = ServedModels(registry, hosting, operator.engines, state.lock_models)
        self.routers = make_routers(state, operator, self._jobs, launcher, self._models, deadlines)

    async def run(self) -> None:
        """Manage jobs and served models until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            await asyncio.gather(self._manager.run(), self._models.run())
        finally:
            self._loop = None

    def _wake(self) -> None:
        """Notify the job manager that a job was created or changed; safe to call from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed concurrently
                self._loop.call_soon_threadsafe(self._manager.wake)
