"""Launcher that runs drivers as Ray jobs, and job checks as processes on this machine."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ray.job_submission import JobStatus, JobSubmissionClient

from agent_rft.errors import Problem, RftError
from agent_rft.serve.jobs.job_logs import VALIDATION, JobLogs
from agent_rft.serve.jobs.job_manager import DriverState
from agent_rft.serve.jobs.processes.check_process import run_check
from agent_rft.serve.jobs.processes.driver_settings import DriverSettings
from agent_rft.serve.jobs.processes.request_check import CheckRequest
from agent_rft.serve.stores.job_tables import JobRecord

T = TypeVar("T")

DRIVER = (sys.executable, "-P", "-m", "agent_rft.serve.jobs.processes.job_driver")
DRAFT = (sys.executable, "-P", "-m", "agent_rft.serve.jobs.processes.request_check")
ALIVE = (JobStatus.PENDING, JobStatus.RUNNING)


class RayLauncher:
    """Implementation of Launcher (serve/jobs/job_manager.py) that uses Ray.

    `dashboard` is the URL of the cluster's job server. `program` is the command that starts a driver. `connect` takes
    the job server's URL and returns a client.
    """

    def __init__(
        self,
        settings: DriverSettings,
        dashboard: str,
        program: Sequence[str] = DRIVER,
        connect: Callable[[str], Any] = JobSubmissionClient,
    ) -> None:
        self._settings_file = settings.write()
        self._logs = JobLogs(Path(settings.folder))
        self._address = settings.address
        self._dashboard = dashboard
        self._program = program
        self._connect = connect
        self._client: Any = None

    async def check_job(self, job: JobRecord) -> list[Problem]:
        environment = dict(os.environ) if self._address is None else os.environ | {"RAY_ADDRESS": self._address}
        output = await asyncio.to_thread(self._logs.create_file, job.id, VALIDATION)
        return await run_check(self._command(job), environment, job.id, output)

    async def check_request(self, draft: CheckRequest) -> list[Problem]:
        command = [*DRAFT, "--settings", str(self._settings_file)]
        return await run_check(command, os.environ, None, Path(os.devnull), draft.as_json().encode())

    async def launch(self, job: JobRecord, handle: str) -> None:
        # The output goes to a file instead of Ray, so that it can be read when the cluster is down.
        output = await asyncio.to_thread(self._logs.create_file, job.id, job.attempt)
        command = shlex.join([*self._command(job), "--attempt", str(job.attempt)])
        command = f"exec {command} >> {shlex.quote(str(output))} 2>&1"
        try:
            await self._call(lambda client: client.submit_job(entrypoint=command, submission_id=handle))
        except RftError:
            if (await self.get_state(handle)).state == "unknown":
                raise  # otherwise an earlier call submitted the driver

    async def get_state(self, handle: str) -> DriverState:
        try:
            info = await self._call(lambda client: client.get_job_info(handle))
        except RftError as error:
            if "does not exist" not in str(error):
                raise
            return DriverState("unknown")
        if info.status in ALIVE:
            return DriverState("alive")
        return DriverState("ended", info.driver_exit_code, info.message or "")

    async def stop(self, handle: str) -> None:
        await self._call(lambda client: client.stop_job(handle))

    def _command(self, job: JobRecord) -> list[str]:
        return [*self._program, "--settings", str(self._settings_file), "--job", job.id]

    async def _call(self, ask: Callable[[JobSubmissionClient], T]) -> T:
        return await asyncio.to_thread(partial(self._send_request, ask))

    def _send_request(self, ask: Callable[[Any], T]) -> T:
        try:
            if self._client is None:
                self._client = self._connect(self._dashboard)
            return ask(self._client)
        except Exception as error:  # Ray raises plain RuntimeErrors and more
            what = "a request to the cluster's job server failed"
            raise RftError(f"{what}: {' '.join(str(error).split())}", public_message=what) from error
