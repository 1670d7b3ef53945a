"""Brings every job to its end: validates it, starts its driver when its turn comes, and starts another one where a
driver is lost.

Nothing is kept here that the store does not hold, so a manager may be killed at any moment: the next one, in this
server or another, takes its jobs when their leases have run out. What a client asks for is the job's state: a driver
whose job is no longer `running` ends by itself, and is ended where it does not.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from cluster.jobs.problems import describe, wire_error
from cluster.records.redact import plain
from cluster.stores.job_states import IllegalMove, JobStatus
from cluster.stores.job_store import JobStore
from cluster.stores.job_tables import JobError, JobRecord
from trainer.errors import Problem, RftError

T = TypeVar("T")

log = logging.getLogger(__name__)
MAX_WORDS_CHARS = 2_000
PAUSING: tuple[JobStatus, ...] = ("paused", "queued")
"""What a job with a driver is while that takes its checkpoint: a client may have resumed it meanwhile."""


@dataclass(frozen=True, slots=True)
class DriverState:
    """`unknown`: nobody can say, or nobody knows it. `words` are what a driver that ended said last."""

    state: Literal["alive", "ended", "unknown"]
    words: str = ""


class Launcher(Protocol):
    """Runs drivers. Each call may raise RftError where what runs them does not answer."""

    async def validate(self, job: JobRecord) -> list[Problem]:
        """What is wrong with a job's files, model and endpoints."""

    async def launch(self, job: JobRecord, handle: str) -> None:
        """Start the job's driver `job.attempt`. A second call with the same handle starts nothing."""

    async def state(self, handle: str) -> DriverState: ...

    async def stop(self, handle: str) -> None:
        """End a driver, whatever it does. Done twice, it is the same."""


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """`max_relaunches` counts drivers lost since the last checkpoint. `lease_s`: how long the jobs of a server that
    died wait for another one. `launch_s`: how long a cluster is asked to start a driver. Without a heartbeat for so
    long a driver is lost: `silent_s`, where nobody knows it; `hung_s`, where it is alive. It has `stop_grace_s` to end
    by itself, `pause_grace_s` to take its checkpoint.
    """

    max_running: int = 1
    max_relaunches: int = 2
    poll_s: float = 1.0
    lease_s: float = 20.0
    launch_s: float = 60.0
    silent_s: float = 20.0
    hung_s: float = 300.0
    stop_grace_s: float = 30.0
    pause_grace_s: float = 900.0
    validation_s: float = 1800.0
    call_s: float = 30.0
    max_validations: int = 2


class JobManager:
    """One per server."""

    def __init__(
        self,
        store: JobStore,
        launcher: Launcher,
        config: ManagerConfig,
        clock: Callable[[], float] = time.time,
        name: str | None = None,
    ) -> None:
        self._store = store
        self._launcher = launcher
        self._config = config
        self._clock = clock
        self._name = name or f"manager-{secrets.token_hex(6)}"
        self._validating: dict[str, asyncio.Task[None]] = {}
        self._told: set[str] = set()
        self._unsent: dict[str, str] = {}
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled. What goes wrong with the store or the cluster is tried again."""
        try:
            while True:
                self._woken.clear()
                try:
                    await self.tick()
                except Exception:  # the loop of a server outlives what a database or a cluster raises
                    log.exception("jobs are looked after again in %g s", self._config.poll_s)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), self._config.poll_s)
        finally:
            for task in self._validating.values():
                task.cancel()
            await asyncio.gather(*self._validating.values(), return_exceptions=True)

    def wake(self) -> None:
        """Something was asked for: look at once. To be called in the event loop."""
        self._woken.set()

    async def tick(self) -> None:
        """Bring each job one step on."""
        await self._validate()
        await self._start()
        for job in await self._call(self._store.with_status, "running"):
            if await self._mine(job):
                await self._watch(job)
        for job in await self._call(self._store.with_driver):
            if await self._mine(job):
                await self._release(job)

    async def validated(self) -> None:
        """When all validations that are under way have ended."""
        await asyncio.gather(*self._validating.values())

    # -- before it runs ------------------------------------------------------------------------------------------------

    async def _validate(self) -> None:
        for job_id, task in list(self._validating.items()):
            if task.done():
                del self._validating[job_id]
                task.result()  # what went wrong with the store; the job is validated again
        for job in await self._call(self._store.with_status, "validating_files"):
            full = len(self._validating) >= self._config.max_validations
            if (job.id in self._validating or not full) and await self._mine(job) and job.id not in self._validating:
                self._validating[job.id] = asyncio.create_task(self._validate_one(job))

    async def _validate_one(self, job: JobRecord) -> None:
        await self._tell(job, "info", f"Validating training file: {job.training_file}")
        try:
            async with asyncio.timeout(self._config.validation_s):
                problems = await self._launcher.validate(job)
        except TimeoutError:
            await self._fail(job, JobError("validation_failed", f"not validated after {self._config.validation_s:g} s"))
            return
        except RftError as error:
            await self._fail(job, JobError("validation_failed", _last(str(error))))
            return
        for problem in problems:
            await self._tell(job, "error", describe(problem))
        if problems:
            await self._fail(job, wire_error(problems))
        elif await self._move(job, "queued"):
            await self._tell(job, "info", "Files validated, moving job to queued state")
        self.wake()

    async def _start(self) -> None:
        config = self._config
        while True:
            job = await self._call(self._store.claim_next, self._name, config.max_running, config.lease_s)
            if job is None:
                break
            self._told.discard(job.id)
            await self._tell(job, "info", "Fine-tuning job started" if job.attempt == 0 else "Fine-tuning job goes on")
            await self._launch(job, failures=0)
        for job in await self._call(self._store.with_status, "queued"):
            if job.id not in self._told:
                self._told.add(job.id)
                at_once = f"{config.max_running} job{'s' * (config.max_running > 1)} at a time"
                await self._tell(job, "info", f"The job waits for its turn: this server runs {at_once}")

    # -- while it runs -------------------------------------------------------------------------------------------------

    async def _launch(self, job: JobRecord, failures: int) -> None:
        handle = f"{job.id}-{job.attempt + 1}"
        if not await self._call(self._store.next_attempt, job.id, job.attempt, handle, failures=failures):
            return
        await self._submit(await self._call(self._store.get, job.id), handle)

    async def _submit(self, job: JobRecord, handle: str) -> None:
        """A cluster that is only starting, or that is away for a moment, is asked again at the next tick."""
        try:
            async with asyncio.timeout(self._config.call_s):
                await self._launcher.launch(job, handle)
            self._unsent.pop(handle, None)
        except (RftError, TimeoutError) as error:
            why = _last(str(error)) or "it gives no answer"
            if handle not in self._unsent:
                await self._tell(job, "warn", f"the cluster does not start the driver yet: {why}")
            self._unsent[handle] = why

    async def _watch(self, job: JobRecord) -> None:
        if job.handle is None or job.heartbeat_at is None:  # claimed by a manager that came no further
            await self._launch(job, job.failures)
            return
        silent_s = self._clock() - job.heartbeat_at
        if (why := self._unsent.get(job.handle)) is not None:
            if silent_s <= self._config.launch_s:
                await self._submit(job, job.handle)
                return
            del self._unsent[job.handle]
            await self._lost(job, why)
            return
        found = await self._state(job.handle)
        if found.state == "ended":
            await self._lost(job, found.words)
        elif found.state == "alive" and silent_s > self._config.hung_s:
            await self._stop(job.handle)
            await self._lost(job, f"it gave no sign of life for {silent_s:.0f} s")
        elif found.state == "unknown" and silent_s > self._config.silent_s:
            await self._lost(job, "it is gone, and with it the part of the cluster that it ran on")

    async def _lost(self, job: JobRecord, words: str) -> None:
        """A driver has ended without saying what became of its job."""
        job = await self._call(self._store.get, job.id)
        if job.status != "running":
            return
        words = _last(job.last_words or words)
        failures = job.failures + 1
        if failures > self._config.max_relaunches:
            text = f"the job's driver was lost {failures} times; its last words: {words}"
            await self._fail(job, JobError("driver_lost", text))
            return
        await self._tell(job, "warn", f"the job's driver was lost; another one goes on. Its last words: {words}")
        await self._launch(job, failures)

    async def _release(self, job: JobRecord) -> None:
        """A job that does not run shall have no driver."""
        assert job.handle is not None
        found = await self._state(job.handle)
        since_s = self._clock() - job.moved_at
        silent_s = self._clock() - (job.heartbeat_at or job.moved_at)
        if found.state == "ended" or (found.state == "unknown" and silent_s > self._config.silent_s):
            await self._call(self._store.driver_gone, job.id, job.handle)
            self.wake()
        elif since_s > (self._config.pause_grace_s if job.status in PAUSING else self._config.stop_grace_s):
            await self._stop(job.handle)

    # -- pieces --------------------------------------------------------------------------------------------------------

    async def _state(self, handle: str) -> DriverState:
        try:
            async with asyncio.timeout(self._config.call_s):
                return await self._launcher.state(handle)
        except (RftError, TimeoutError):
            return DriverState("unknown")

    async def _stop(self, handle: str) -> None:
        try:
            async with asyncio.timeout(self._config.call_s):
                await self._launcher.stop(handle)
        except (RftError, TimeoutError) as error:
            log.warning("the driver %s is not stopped: %s", handle, error)

    async def _fail(self, job: JobRecord, error: JobError) -> None:
        if await self._move(job, "failed", error=error):
            await self._tell(job, "error", f"The job failed: {error.message}")

    async def _move(self, job: JobRecord, to: JobStatus, **changes: Any) -> bool:
        """False where the job is elsewhere by now: somebody cancelled it, or its driver came to an end."""
        try:
            await self._call(self._store.move, job.id, to, attempt=job.attempt, **changes)
        except IllegalMove:
            return False
        return True

    async def _mine(self, job: JobRecord) -> bool:
        return await self._call(self._store.lease, job.id, self._name, self._config.lease_s)

    async def _tell(self, job: JobRecord, level: Literal["info", "warn", "error"], message: str) -> None:
        await self._call(self._store.add_event, job.id, level, message)

    def _call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> Awaitable[T]:
        return asyncio.to_thread(function, *args, **kwargs)


def _last(words: str) -> str:
    """The end of a text that came from a process, without what may be secret in its URLs."""
    return str(plain(words.strip()))[-MAX_WORDS_CHARS:]
