"""Drivers as jobs of Ray, and preflights as processes of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ray.job_submission import JobStatus, JobSubmissionClient

from cluster.jobs.driver_settings import DriverSettings
from cluster.jobs.manager import DriverState
from cluster.stores.job_tables import JobRecord
from trainer.errors import Problem, RftError

T = TypeVar("T")

LAST_WORDS_BYTES = 2_000
ALIVE = (JobStatus.PENDING, JobStatus.RUNNING)


class RayLauncher:
    """A Launcher (cluster/jobs/manager.py). `dashboard` is the URL of the cluster's job server."""

    def __init__(self, settings: DriverSettings, dashboard: str) -> None:
        self._settings_file = settings.write()
        self._address = settings.address
        self._dashboard = dashboard
        self._client: JobSubmissionClient | None = None

    async def validate(self, job: JobRecord) -> list[Problem]:
        with tempfile.TemporaryDirectory() as folder:
            out, log = Path(folder) / "problems.json", Path(folder) / "log"
            command = [*self._command(job), "--check", str(out)]
            environment = dict(os.environ) if self._address is None else os.environ | {"RAY_ADDRESS": self._address}
            with log.open("wb") as file:
                process = await asyncio.create_subprocess_exec(*command, stdout=file, stderr=file, env=environment)
            try:
                code = await process.wait()
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
            if code != 0 or not out.exists():
                words = log.read_bytes()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
                raise RftError(f"the check of the job ended with code {code}: {words}")
            return [Problem(**problem) for problem in json.loads(out.read_text())]

    async def launch(self, job: JobRecord, handle: str) -> None:
        command = shlex.join([*self._command(job), "--attempt", str(job.attempt)])
        try:
            await self._call(lambda client: client.submit_job(entrypoint=command, submission_id=handle))
        except RftError:
            if (await self.state(handle)).state == "unknown":
                raise  # else it was submitted before

    async def state(self, handle: str) -> DriverState:
        try:
            info = await self._call(lambda client: client.get_job_info(handle))
        except RftError as error:
            if "does not exist" not in str(error):
                raise
            return DriverState("unknown")
        return DriverState("alive") if info.status in ALIVE else DriverState("ended", _words(info.message))

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
        except Exception as error:  # Ray raises bare ones
            raise RftError(f"the cluster's job server does not do it: {' '.join(str(error).split())}") from error


def _words(message: str | None) -> str:
    """Without Ray's own preface to the end of a driver's output."""
    text = message or ""
    return text.partition("chars):")[2].strip() or text
