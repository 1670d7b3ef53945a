"""The services behind the routes: jobs with their manager, models with their engines, on one cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from fastapi import APIRouter

from cluster.jobs.comparisons import Comparisons
from cluster.jobs.logs import JobLogs
from cluster.jobs.manager import JobManager, Launcher, ManagerConfig
from cluster.jobs.records import JobRecords
from cluster.jobs.service import JobService
from cluster.stores.job_store import JobStore
from serve.console import session
from serve.host.state import ServerState
from serve.http.deadlines import DEADLINES, Deadlines
from serve.http.trials import Trials
from serve.inference import chat, responses
from serve.inference.model_server import Hosting, ModelServer, ServedModels
from serve.routes import (
    comparison,
    files,
    fine_tuning,
    graders,
    job_check,
    job_now,
    job_records,
    job_stream,
    job_tools,
    keys,
    models,
    readiness,
)
from serve.routes.job_check import Checker
from serve.routes.job_stream import Pace
from trainer.spec.operator.config import Operator


def routers_of(
    state: ServerState,
    operator: Operator,
    jobs: JobService,
    checker: Checker,
    served: ModelServer,
    deadlines: Deadlines = DEADLINES,
    pace: Pace | None = None,
) -> Sequence[APIRouter]:
    """Returns the routers of the whole API; `pace` is that of streams."""
    store, trials, runs = jobs.store, Trials(operator), state.folder / "runs"
    return (
        files.make_router(state.files, operator.limits.max_uploads, deadlines),
        fine_tuning.make_router(jobs),
        job_check.make_router(jobs, checker),
        job_now.make_router(store, runs),
        job_records.make_router(JobRecords(store, runs)),
        comparison.make_router(store, Comparisons(runs)),
        job_tools.make_router(jobs, trials),
        job_stream.make_router(store, runs, pace=pace),
        readiness.make_router(jobs),
        graders.make_router(trials),
        models.make_router(state.models),
        keys.make_router(state.keys),
        chat.make_router(served, trials),
        responses.make_router(served, trials, state.secrets),
        session.make_router(state.sessions),
    )


class Services:
    """Builds the routers and what they call; `run` must run in the event loop that serves them."""

    def __init__(
        self,
        state: ServerState,
        operator: Operator,
        launcher: Launcher,
        hosting: Hosting,
        deadlines: Deadlines = DEADLINES,
    ) -> None:
        registry = state.models
        config = ManagerConfig(max_running=operator.jobs.max_running)
        store, logs = JobStore(state.database), JobLogs(state.folder)
        self._manager = JobManager(store, launcher, logs, config)
        self._jobs = JobService(store, registry, state.files, state.secrets, operator, logs, wake=self._wake)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._models = ServedModels(registry, hosting, operator.engines, state.models_lock)
        self.routers = routers_of(state, operator, self._jobs, launcher, self._models, deadlines)

    async def run(self) -> None:
        """Manages jobs and served models until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            await asyncio.gather(self._manager.run(), self._models.run())
        finally:
            self._loop = None

    def _wake(self) -> None:
        """Tells the manager, from any thread, that a job was created."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed in the meantime
                self._loop.call_soon_threadsafe(self._manager.wake)
