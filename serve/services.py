"""What stands behind the routes: jobs with their manager, models with their engines, on one cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fastapi import APIRouter

from cluster.driver_settings import DriverSettings
from cluster.job_service import JobService
from cluster.jobs import JobManager
from cluster.model_registry import ModelRecord
from cluster.ray_launcher import RayLauncher
from cluster.store import JobStore
from serve import chat, files, fine_tuning, graders, models, responses
from serve.best_of import grader_pools
from serve.model_server import EnginePool
from serve.ray_engine import EngineResources, RayEngine
from serve.state import Places, ServerState
from trainer.operator import Operator


class Services:
    """Made in no event loop; `run` is to be run in the one that serves. `config` is the operator's file,
    `job_server` the URL of the cluster's, `resources` those of each engine that serves."""

    def __init__(
        self,
        state: ServerState,
        places: Places,
        operator: Operator,
        config: Path | None,
        address: str | None,
        job_server: str,
        resources: EngineResources,
    ) -> None:
        """
        Raises:
            UserError: the database cannot be used.
        """
        settings = DriverSettings(
            folder=str(places.folder.resolve()),
            database=state.database.url,
            files=places.files,
            config=None if config is None else str(config.resolve()),
            address=address,
        )
        registry = state.models
        self._manager = JobManager(JobStore(state.database), RayLauncher(settings, job_server))
        self._jobs = JobService(
            JobStore(state.database), registry, state.files, state.secrets, operator, wake=self._wake
        )
        self._loop: asyncio.AbstractEventLoop | None = None

        def spawn(record: ModelRecord) -> RayEngine:
            return RayEngine(record, resources)

        self._pool = EnginePool(registry, spawn)
        grading = grader_pools(operator)
        self.routers: Sequence[APIRouter] = (
            files.make_router(state.files),
            fine_tuning.make_router(self._jobs),
            graders.make_router(operator),
            models.make_router(registry),
            chat.make_router(self._pool, grading),
            responses.make_router(self._pool, grading, state.secrets),
        )

    async def run(self) -> None:
        """Look after jobs until cancelled; then stop all engines."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._manager.run()
        finally:
            self._loop = None
            await asyncio.shield(self._pool.close())

    def _wake(self) -> None:
        """From any thread: a job was asked for."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed in this moment
                self._loop.call_soon_threadsafe(self._manager.wake)
