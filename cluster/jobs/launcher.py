"""Runs drivers as Ray jobs, and validations as processes on this machine."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ray.job_submission import JobStatus, JobSubmissionClient

from cluster.jobs.check_process import run_check
from cluster.jobs.driver_settings import DriverSettings
from cluster.jobs.manager import DriverState
from cluster.stores.job_tables import JobRecord
from trainer.errors import Problem, RftError

T = TypeVar("T")

ALIVE = (JobStatus.PENDING, JobStatus.RUNNING)


class RayLauncher:
    """A Launcher (cluster/jobs/manager.py) on Ray. `dashboard` is the URL of the cluster's job server."""

    def __init__(self, settings: DriverSettings, dashboard: str) -> None:
        self._settings_file = settings.write()
        self._address = settings.address
        self._dashboard = dashboard
        self._client: JobSubmissionClient | None = None

    async def validate(self, job: JobRecord) -> list[Problem]:
        environment = dict(os.environ) if self._address is None else os.environ | {"RAY_ADDRESS": self._address}
        return await run_check(self._command(job), environment, job.id)

    async def launch(self, job: JobRecord, handle: str) -> None:
        command = shlex.join([*self._command(job), "--attempt", str(job.attempt)])
        try:
            await self._call(lambda client: client.submit_job(entrypoint=command, submission_id=handle))
        except RftError:
            if (await self.state(handle)).state == "unknown":
                raise  # otherwise it was submitted by an earlier call

    async def state(self, handle: str) -> DriverState:
        try:
            info = await self._call(lambda client: client.get_job_info(handle))
        except RftError as error:
            if "does not exist" not in str(error):
                raise
            return DriverState("unknown")
        return DriverState("alive") if info.status in ALIVE else DriverState("ended", _driver_output(info.message))

    async def stop(self, handle: str) -> None:
        await self._call(lambda client: client.stop_job(handle))

    def _command(self, job: JobRecord) -> list[str]:
        return [sys.executable, "-m", "cluster.jobs.driver", "--settings", str(self._settings_file), "--job", job.id]

    async def _call(self, ask: Callable[[JobSubmissionClient], T]) -> T:
        return await asyncio.to_thread(partial(self._ask, ask))

    def _ask(self, ask: Callable[[Any], T]) -> T:
        try:
            if self._client is None:
                self._client = JobSubmissionClient(self._dashboard)
            return ask(self._client)
        except Exception as error:  # Ray raises plain RuntimeErrors and more
            raise RftError(f"a request to the cluster's job server failed: {' '.join(str(error).split())}") from error


def _driver_output(message: str | None) -> str:
    """The driver's last output, without the preface that Ray puts before it."""
    text = message or ""
    return text.partition("chars):")[2].strip() or text
