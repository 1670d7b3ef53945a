"""Manager of a server's jobs: checks each job, starts its driver when the queue allows, and replaces lost drivers.

All state is in the store, so a manager may be killed at any moment. When the leases on its jobs expire, another
manager, in this server or a different one, takes over the jobs. Clients control a job only through its state. A driver
exits when its job is no longer `running`, and the manager stops the driver if it does not exit.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from agent_rft.errors import Problem, RftError
from agent_rft.serve.jobs.client_errors import add_log_hint, describe_exit, describe_problem, make_job_error
from agent_rft.serve.jobs.job_logs import JobLogs
from agent_rft.serve.jobs.processes.request_check import CheckRequest
from agent_rft.serve.stores.database import describe_error, is_unavailable
from agent_rft.serve.stores.job_states import IllegalStateChange, JobStatus
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import JobError, JobRecord

T = TypeVar("T")

log = logging.getLogger(__name__)
PAUSING: tuple[JobStatus, ...] = ("paused", "queued")
"""Job states in which a driver may still be writing a checkpoint."""


@dataclass(frozen=True, slots=True)
class DriverState:
    """State of a driver. `unknown` means that the cluster does not answer or has no record of the driver.

    `exit_code` is None if the driver is alive or its exit code is unknown. `message` is a log message from the cluster.
    """

    state: Literal["alive", "ended", "unknown"]
    exit_code: int | None = None
    message: str = ""


class Launcher(Protocol):
    """Interface for checking jobs and running drivers. Each method raises RftError if the cluster does not answer."""

    async def check_job(self, job: JobRecord) -> list[Problem]:
        """Return the problems with a job's files, model and endpoints."""

    async def check_request(self, draft: CheckRequest) -> list[Problem]:
        """Return the problems with a job request, before a job is created. Reads files, but does not call endpoints."""

    async def launch(self, job: JobRecord, handle: str) -> None:
        """Start driver number `job.attempt` of the job. Calling this again with the same handle does nothing."""

    async def get_state(self, handle: str) -> DriverState: ...

    async def stop(self, handle: str) -> None:
        """Stop a driver. Idempotent."""


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """Limits and timeouts of a manager.

    Attributes:
        max_running: Maximum concurrent jobs.
        max_relaunches: Maximum replacements of lost drivers since the last checkpoint. The next loss fails the job.
        poll_s: Time between two ticks, which read the store.
        lease_s: Time after which another server takes over the jobs of a server that died.
        launch_timeout_s: Time for which a driver's start is retried before the driver counts as lost.
        unknown_timeout_s: Time without a heartbeat after which a driver is lost if the cluster has no record of it.
        hang_timeout_s: Time without a heartbeat after which a driver is lost if the cluster reports it as alive.
        stop_grace_s: Time that a driver gets to exit after its job has ended.
        pause_grace_s: Time that a driver gets to write a checkpoint after its job was paused.
        check_timeout_s: Timeout of a job check, including the wait for the job's endpoints.
        call_s: Timeout of a call to the cluster.
        max_checks: Maximum concurrent job checks. One owner gets at most half of them, rounded up.
    """

    max_running: int = 1
    max_relaunches: int = 2
    poll_s: float = 1.0
    lease_s: float = 20.0
    launch_timeout_s: float = 60.0
    unknown_timeout_s: float = 20.0
    hang_timeout_s: float = 300.0
    stop_grace_s: float = 30.0
    pause_grace_s: float = 900.0
    check_timeout_s: float = 900.0
    call_s: float = 30.0
    max_checks: int = 3


class RunningCheck(NamedTuple):
    """Running check of an owner's job."""

    owner: str
    task: asyncio.Task[None]


class JobManager:
    """Manager of the jobs of one server. `clock` returns Unix seconds; `name` identifies the manager in leases.

    Messages from processes and from the cluster are written to `logs`. Clients never see them.
    """

    def __init__(
        self,
        store: JobStore,
        launcher: Launcher,
        logs: JobLogs,
        config: ManagerConfig,
        clock: Callable[[], float] = time.time,
        name: str | None = None,
    ) -> None:
        self._store = store
        self._launcher = launcher
        self._logs = logs
        self._config = config
        self._clock = clock
        self._name = name or f"manager-{secrets.token_hex(6)}"
        self._validating: dict[str, RunningCheck] = {}
        self._check_turns: dict[str, int] = {}
        """Number of the last check that started for an owner. Owners take turns."""
        self._num_checks = 0
        self._announced: set[str] = set()
        """Ids of queued jobs that already have an event about waiting."""
        self._not_started: dict[str, str] = {}
        """For each driver handle, the reason why the cluster has not started this driver yet."""
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Tick every `poll_s` seconds until cancelled. If the store or the cluster fails, the next tick tries again."""
        try:
            while True:
                self._woken.clear()
                try:
                    await self.tick()
                except Exception as error:  # the loop must survive whatever a database or a cluster raises
                    if is_unavailable(error):
                        log.error("the database is unavailable, so jobs wait: %s", describe_error(error))
                    else:
                        log.exception("the job manager failed; retrying in %g s", self._config.poll_s)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), self._config.poll_s)
        finally:
            tasks = [check.task for check in self._validating.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """Start the next tick now instead of after `poll_s`. Must be called in the event loop."""
        self._woken.set()

    async def tick(self) -> None:
        """Advance every job by one step."""
        await self._validate()
        await self._start()
        for job in await self._call(self._store.list_with_status, "running"):
            if await self._lease(job):
                await self._watch(job)
        for job in await self._call(self._store.list_with_driver):
            if await self._lease(job):
                await self._release(job)

    async def wait_for_checks(self) -> None:
        """Wait until all running job checks have ended."""
        await asyncio.gather(*(check.task for check in self._validating.values()))

    # -- before it runs ------------------------------------------------------------------------------------------------

    async def _validate(self) -> None:
        for job_id, check in list(self._validating.items()):
            if check.task.done():
                del self._validating[job_id]
                check.task.result()  # raises if the store failed; the job is then checked again
        jobs = await self._call(self._store.list_with_status, "validating_files")
        for job in sorted(jobs, key=lambda job: self._check_turns.get(job.owner, 0)):
            if job.id in self._validating:
                await self._lease(job)
            elif self._has_free_check(job.owner) and await self._lease(job):
                self._num_checks += 1
                self._check_turns[job.owner] = self._num_checks
                self._validating[job.id] = RunningCheck(job.owner, asyncio.create_task(self._validate_one(job)))

    def _has_free_check(self, owner: str) -> bool:
        limit, num_of_owner = self._config.max_checks, sum(one.owner == owner for one in self._validating.values())
        return len(self._validating) < limit and num_of_owner < -(-limit // 2)

    async def _validate_one(self, job: JobRecord) -> None:
        await self._add_event(job, "info", f"Validating training file: {job.training_file}")
        try:
            async with asyncio.timeout(self._config.check_timeout_s):
                problems = await self._launcher.check_job(job)
        except TimeoutError:
            message = f"the job check did not finish within {self._config.check_timeout_s:g} s"
            await self._fail(job, JobError("check_failed", message))
            return
        except RftError as error:
            await self._fail(job, JobError("check_failed", error.public_message))
            return
        for problem in problems:
            await self._add_event(job, "error", describe_problem(problem))
        if problems:
            await self._fail(job, make_job_error(problems))
        elif await self._move(job, "queued"):
            await self._add_event(job, "info", "Files validated, moving job to queued state")
        self.wake()

    async def _start(self) -> None:
        config = self._config
        while True:
            job = await self._call(self._store.claim_next, self._name, config.max_running, config.lease_s)
            if job is None:
                break
            self._announced.discard(job.id)
            what = "Fine-tuning job" if job.readiness is None else "Readiness check"
            await self._add_event(job, "info", f"{what} {'started' if job.attempt == 0 else 'continued'}")
            await self._launch(job, failures=0)
        for job in await self._call(self._store.list_with_status, "queued"):
            if job.id not in self._announced:
                self._announced.add(job.id)
                limit = f"{config.max_running} job{'s' * (config.max_running > 1)} at a time"
                await self._add_event(job, "info", f"The job is waiting in the queue: this server runs {limit}")

    # -- while it runs -------------------------------------------------------------------------------------------------

    async def _launch(self, job: JobRecord, failures: int) -> None:
        handle = f"{job.id}-{job.attempt + 1}"
        if not await self._call(self._store.next_attempt, job.id, job.attempt, handle, failures=failures):
            return
        await self._submit(await self._call(self._store.get, job.id), handle)

    async def _submit(self, job: JobRecord, handle: str) -> None:
        """Submit a driver. The next tick retries if the cluster is still starting or briefly unavailable."""
        try:
            async with asyncio.timeout(self._config.call_s):
                await self._launcher.launch(job, handle)
            self._not_started.pop(handle, None)
        except (RftError, TimeoutError) as error:
            why = error.public_message if isinstance(error, RftError) else "the cluster does not answer"
            if handle not in self._not_started:
                await self._call(self._logs.add, job.id, job.attempt, f"not started: {error or why}")
                await self._add_event(job, "warn", f"the cluster has not started the driver yet: {why}")
            self._not_started[handle] = why

    async def _watch(self, job: JobRecord) -> None:
        if job.handle is None or job.heartbeat_at is None:  # claimed by a manager that died before launching it
            await self._launch(job, job.failures)
            return
        silent_s = self._clock() - job.heartbeat_at
        if (why := self._not_started.get(job.handle)) is not None:
            if silent_s <= self._config.launch_timeout_s:
                await self._submit(job, job.handle)
                return
            del self._not_started[job.handle]
            await self._replace_lost_driver(job, why)
            return
        found = await self._state(job.handle)
        if found.state == "ended":
            if found.message:
                await self._call(self._logs.add, job.id, job.attempt, found.message)
            await self._replace_lost_driver(job, describe_exit(found.exit_code))
        elif found.state == "alive" and silent_s > self._config.hang_timeout_s:
            await self._stop(job.handle)
            await self._replace_lost_driver(job, f"no heartbeat for {silent_s:.0f} s")
        elif found.state == "unknown" and silent_s > self._config.unknown_timeout_s:
            await self._replace_lost_driver(
                job, f"no heartbeat for {silent_s:.0f} s, and the cluster has no record of the driver"
            )

    async def _replace_lost_driver(self, job: JobRecord, reason: str) -> None:
        """Replace a lost driver, or fail the job if it has lost too many drivers."""
        job = await self._call(self._store.get, job.id)
        if job.status != "running":
            return
        reason = job.driver_message or reason
        failures = job.failures + 1
        if failures > self._config.max_relaunches:
            text = f"the job's driver was lost {failures} times; last reason: {reason}"
            await self._fail(job, JobError("driver_lost", add_log_hint(text, job.id)))
            return
        text = f"the job's driver was lost and is being replaced; reason: {reason}"
        await self._add_event(job, "warn", add_log_hint(text, job.id))
        await self._launch(job, failures)

    async def _release(self, job: JobRecord) -> None:
        """Record that the driver of a stopped job has exited, or stop the driver after the grace period."""
        assert job.handle is not None
        found = await self._state(job.handle)
        since_s = self._clock() - job.status_changed_at
        silent_s = self._clock() - (job.heartbeat_at or job.status_changed_at)
        if found.state == "ended" or (found.state == "unknown" and silent_s > self._config.unknown_timeout_s):
            await self._call(self._store.clear_driver, job.id, job.handle)
            self.wake()
        elif since_s > (self._config.pause_grace_s if job.status in PAUSING else self._config.stop_grace_s):
            await self._stop(job.handle)

    # -- helpers -------------------------------------------------------------------------------------------------------

    async def _state(self, handle: str) -> DriverState:
        try:
            async with asyncio.timeout(self._config.call_s):
                return await self._launcher.get_state(handle)
        except (RftError, TimeoutError):
            return DriverState("unknown")

    async def _stop(self, handle: str) -> None:
        try:
            async with asyncio.timeout(self._config.call_s):
                await self._launcher.stop(handle)
        except (RftError, TimeoutError) as error:
            log.warning("could not stop the driver %s: %s", handle, error)

    async def _fail(self, job: JobRecord, error: JobError) -> None:
        if await self._move(job, "failed", error=error):
            await self._add_event(job, "error", f"The job failed: {error.message}")

    async def _move(self, job: JobRecord, to: JobStatus, **changes: Any) -> bool:
        """Change a job's state. Return False if a client or the job's driver has already changed it."""
        try:
            await self._call(self._store.move, job.id, to, attempt=job.attempt, **changes)
        except IllegalStateChange:
            return False
        return True

    async def _lease(self, job: JobRecord) -> bool:
        return await self._call(self._store.lease, job.id, self._name, self._config.lease_s)

    async def _add_event(self, job: JobRecord, level: Literal["info", "warn", "error"], message: str) -> None:
        await self._call(self._store.add_event, job.id, level, message)

    def _call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> Awaitable[T]:
        return asyncio.to_thread(function, *args, **kwargs)
