"""The job manager, with a fake cluster and a clock that is set by hand."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from agent_rft.errors import Problem, RftError
from agent_rft.serve.jobs.job_logs import JobLogs
from agent_rft.serve.jobs.job_manager import DriverState, JobManager, ManagerConfig
from agent_rft.serve.stores.database import Database
from agent_rft.serve.stores.job_states import JobStatus
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import JobError, JobRecord
from tests.support.fakes_http import until
from tests.support.jobs import NEW_JOB, FolderJobs, fixture_of

CONFIG = ManagerConfig(
    max_running=1, max_relaunches=2, lease_s=20, unknown_timeout_s=20, hang_timeout_s=300, stop_grace_s=30
)
BAD_LINE = Problem(
    "broken_json", "training_file", "is not valid JSON: line 3", "write one JSON object per line", "file-1", 3
)


class FakeCluster:
    """A Launcher that only keeps the state of each driver, by handle."""

    def __init__(self) -> None:
        self.drivers: dict[str, DriverState] = {}
        self.problems: list[Problem] = []
        self.validated: list[str] = []
        self.stopped: list[str] = []
        self.unavailable: RftError | None = None
        self.launched = asyncio.Event()
        self.hold = asyncio.Event()
        self.hold.set()

    async def check_job(self, job: JobRecord) -> list[Problem]:
        self.validated.append(job.id)
        await self.hold.wait()
        if self.unavailable is not None:
            raise self.unavailable
        return self.problems

    async def launch(self, job: JobRecord, handle: str) -> None:
        if self.unavailable is not None:
            raise self.unavailable
        self.drivers.setdefault(handle, DriverState("alive"))
        self.launched.set()

    async def get_state(self, handle: str) -> DriverState:
        if self.unavailable is not None:
            raise self.unavailable
        return self.drivers.get(handle, DriverState("unknown"))

    async def stop(self, handle: str) -> None:
        self.stopped.append(handle)
        self.end(handle)

    def end(self, handle: str, exit_code: int | None = None, said: str = "") -> None:
        self.drivers[handle] = DriverState("ended", exit_code, said)


class ManagedJobs(FolderJobs):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cluster = FakeCluster()
        self.logs = JobLogs(folder)
        self.manager = self.new_manager()

    def new_manager(self, name: str = "first") -> JobManager:
        return JobManager(self.store, self.cluster, self.logs, CONFIG, lambda: self.now, name)

    def create(self, owner: str = NEW_JOB.owner) -> str:
        return self.store.create(replace(NEW_JOB, owner=owner))[0].id

    def job(self, job_id: str) -> JobRecord:
        return self.store.get(job_id)

    def log(self, job_id: str) -> list[str]:
        return [output.text for output in self.logs.read(job_id, ())]

    def messages(self, job_id: str) -> list[str]:
        return [event.message for event in self.store.events(job_id, limit=100)[0]][::-1]

    async def tick(self, *, later_s: float = 1.0, manager: JobManager | None = None) -> None:
        self.now += later_s
        manager = manager or self.manager
        await manager.tick()
        await manager.wait_for_checks()

    async def queued(self, count: int = 1) -> list[str]:
        """New jobs that the next tick may start."""
        self.cluster.hold.clear()
        ids = [self.create() for _ in range(count)]
        await self.manager.tick()
        assert [self.job(job_id).status for job_id in ids] == ["validating_files"] * count
        self.cluster.hold.set()
        await self.manager.wait_for_checks()
        return ids

    async def started(self) -> str:
        (job_id,) = await self.queued()
        await self.tick()
        assert self.job(job_id).status == "running"
        return job_id

    def beat(self, job_id: str) -> JobStatus | None:
        return self.store.heartbeat(job_id, self.job(job_id).attempt)


jobs = fixture_of(ManagedJobs)


# -- the normal course -------------------------------------------------------------------------------------------------


async def test_a_job_is_validated_queued_run_and_ended_by_its_driver(jobs: ManagedJobs) -> None:
    first, second = await jobs.queued(2)
    assert [jobs.job(i).status for i in (first, second)] == ["queued"] * 2
    await jobs.tick()
    assert [jobs.job(i).status for i in (first, second)] == ["running", "queued"]
    assert list(jobs.cluster.drivers) == [f"{first}-1"]
    assert "The job is waiting in the queue: this server runs 1 job at a time" in jobs.messages(second)
    jobs.store.move(first, "succeeded", attempt=1, fine_tuned_model="ft:a")
    await jobs.tick()
    assert jobs.job(second).status == "queued", "the first one's driver is still shutting down"
    jobs.cluster.end(f"{first}-1")
    await jobs.tick()
    await jobs.tick()
    assert (jobs.job(first).handle, jobs.job(second).status) == (None, "running")
    assert jobs.messages(second).count("The job is waiting in the queue: this server runs 1 job at a time") == 1


async def test_an_invalid_file_fails_the_job_with_the_apis_code_and_the_line(jobs: ManagedJobs) -> None:
    jobs.cluster.problems = [BAD_LINE, replace(BAD_LINE, line=9)]
    job_id = jobs.create()
    await jobs.tick()
    job = jobs.job(job_id)
    assert job.status == "failed" and job.error is not None
    assert (job.error.code, job.error.param) == ("invalid_training_file", "training_file")
    assert "line 3" in job.error.message and "1 more" in job.error.message
    assert sum("line 9" in message for message in jobs.messages(job_id)) == 1
    assert not jobs.cluster.drivers


async def test_a_crashed_validation_fails_the_job_and_clients_are_not_told_what_it_wrote(jobs: ManagedJobs) -> None:
    jobs.cluster.unavailable = RftError("no: ValueError at /x", public_message="it ended with exit code 1")
    job_id = jobs.create()
    await jobs.tick()
    assert jobs.job(job_id).error == JobError("check_failed", "it ended with exit code 1")


# -- requests of clients -----------------------------------------------------------------------------------------------


async def test_a_key_may_run_half_of_the_checks_and_keys_take_turns(jobs: ManagedJobs) -> None:
    jobs.cluster.hold.clear()
    own = [jobs.create() for _ in range(5)]
    await jobs.manager.tick()
    await until(lambda: set(jobs.cluster.validated) == set(own[:2]))
    jobs.store.move(own[0], "cancelled")
    await jobs.manager.tick()
    others = [jobs.create("key-2") for _ in range(2)] + [jobs.create("key-3")]
    await jobs.manager.tick()
    await until(lambda: len(jobs.cluster.validated) > 2)
    assert jobs.cluster.validated[2:] == [others[0]], "the check of a cancelled job counts until it ends"
    jobs.cluster.hold.set()
    for _ in range(4):
        await jobs.manager.wait_for_checks()
        await jobs.manager.tick()
    assert set(jobs.cluster.validated) == {*own, *others}
    assert others[2] in jobs.cluster.validated[3:6], "three checks started together, and key-3 had none before"


async def test_a_job_cancelled_during_validation_stays_cancelled(jobs: ManagedJobs) -> None:
    jobs.cluster.hold.clear()
    job_id = jobs.create()
    await jobs.manager.tick()
    jobs.store.move(job_id, "cancelled")
    jobs.cluster.hold.set()
    await jobs.manager.wait_for_checks()
    await jobs.tick()
    assert jobs.job(job_id).status == "cancelled" and not jobs.cluster.drivers


async def test_the_driver_of_a_cancelled_job_learns_of_it_and_is_stopped_if_it_does_not_exit(jobs: ManagedJobs) -> None:
    job_id = await jobs.started()
    jobs.store.move(job_id, "cancelled")
    assert jobs.beat(job_id) == "cancelled"
    await jobs.tick()
    assert jobs.cluster.stopped == []
    await jobs.tick(later_s=31)
    assert jobs.cluster.stopped == [f"{job_id}-1"]
    await jobs.tick()
    assert jobs.job(job_id).handle is None


async def test_a_resumed_job_gets_a_new_driver_once_the_old_one_is_gone(jobs: ManagedJobs) -> None:
    job_id = await jobs.started()
    jobs.store.move(job_id, "paused")
    assert jobs.beat(job_id) == "paused"
    jobs.store.move(job_id, "queued")
    await jobs.tick(later_s=60)
    assert jobs.job(job_id).status == "queued", "two drivers would write to one folder"
    assert jobs.cluster.stopped == []
    jobs.cluster.end(f"{job_id}-1")
    await jobs.tick()
    await jobs.tick()
    assert jobs.job(job_id).status == "running" and jobs.cluster.drivers[f"{job_id}-2"].state == "alive"


# -- lost drivers ------------------------------------------------------------------------------------------------------


async def test_a_lost_driver_is_replaced_and_too_many_fail_the_job_without_its_output(jobs: ManagedJobs) -> None:
    job_id = await jobs.started()
    for attempt in (1, 2):
        jobs.cluster.end(f"{job_id}-{attempt}", 1, "Traceback: https://tool.example/x?token=secret-1")
        await jobs.tick()
        assert jobs.job(job_id).status == "running"
        assert jobs.cluster.drivers[f"{job_id}-{attempt + 1}"].state == "alive"
    jobs.cluster.end(f"{job_id}-3", 137, "Traceback: out of memory")
    await jobs.tick()
    error = jobs.job(job_id).error
    assert error is not None and error.code == "driver_lost"
    assert "lost 3 times; last reason: SIGKILL ended it" in error.message
    assert f"`agent-rft jobs log {job_id}`" in error.message
    told = "".join([*jobs.messages(job_id), error.message])
    assert told.count("it ended with exit code 1") == 2 and "secret-1" not in told and "Traceback" not in told
    assert [text[:9] for text in jobs.log(job_id)] == ["Traceback"] * 3 and "secret-1" not in str(jobs.log(job_id))
    assert jobs.now - 1_000 < 60


async def test_a_checkpoint_resets_the_count_of_lost_drivers(jobs: ManagedJobs) -> None:
    job_id = await jobs.started()
    for attempt in range(1, 8):
        jobs.store.update_for_driver(job_id, attempt, failures=0)  # as the driver does at each new checkpoint
        jobs.cluster.end(f"{job_id}-{attempt}")
        await jobs.tick()
        assert jobs.job(job_id).status == "running"


async def test_a_driver_that_ended_its_job_is_not_lost(jobs: ManagedJobs) -> None:
    job_id = await jobs.started()
    jobs.store.move(job_id, "succeeded", attempt=1)
    jobs.cluster.end(f"{job_id}-1")
    await jobs.tick()
    assert jobs.job(job_id).status == "succeeded" and len(jobs.cluster.drivers) == 1


async def test_a_driver_the_cluster_has_no_record_of_is_lost_once_its_heartbeats_stop(jobs: ManagedJobs) -> None:
    job_id = await jobs.started()
    del jobs.cluster.drivers[f"{job_id}-1"]  # as after a restart of the cluster
    await jobs.tick(later_s=15)
    assert list(jobs.cluster.drivers) == []
    jobs.beat(job_id)
    await jobs.tick(later_s=15)
    assert list(jobs.cluster.drivers) == []
    await jobs.tick(later_s=15)
    assert list(jobs.cluster.drivers) == [f"{job_id}-2"]


async def test_a_hung_driver_is_stopped_and_replaced(jobs: ManagedJobs) -> None:
    job_id = await jobs.started()
    await jobs.tick(later_s=299)
    assert jobs.cluster.stopped == []
    await jobs.tick(later_s=2)
    assert jobs.cluster.stopped == [f"{job_id}-1"] and jobs.cluster.drivers[f"{job_id}-2"].state == "alive"


async def test_a_cluster_that_is_briefly_unavailable_does_not_count_as_a_failure(jobs: ManagedJobs) -> None:
    (job_id,) = await jobs.queued()
    jobs.cluster.unavailable = RftError("it says no agent yet", public_message="a request failed")
    await jobs.tick()
    await jobs.tick(later_s=30)
    assert jobs.job(job_id).status == "running"
    assert sum("a request failed" in message for message in jobs.messages(job_id)) == 1
    assert "no agent yet" not in str(jobs.messages(job_id)) and "no agent yet" in str(jobs.log(job_id))
    jobs.cluster.unavailable = None
    await jobs.tick()
    assert list(jobs.cluster.drivers) == [f"{job_id}-1"] and jobs.job(job_id).failures == 0


async def test_a_cluster_that_never_starts_a_driver_fails_the_job_with_its_error(jobs: ManagedJobs) -> None:
    (job_id,) = await jobs.queued()
    jobs.cluster.unavailable = RftError("no agent")
    for _ in range(12):
        await jobs.tick(later_s=31)
    error = jobs.job(job_id).error
    assert error is not None and error.code == "driver_lost" and "no agent" in error.message


# -- servers that die --------------------------------------------------------------------------------------------------


async def test_a_new_manager_keeps_live_drivers_and_replaces_lost_ones(jobs: ManagedJobs) -> None:
    job_id = await jobs.started()
    second = jobs.new_manager("second")
    jobs.beat(job_id)
    await jobs.tick(later_s=21, manager=second)
    assert list(jobs.cluster.drivers) == [f"{job_id}-1"]
    jobs.cluster.end(f"{job_id}-1", 137)
    await jobs.tick(manager=second)
    assert jobs.cluster.drivers[f"{job_id}-2"].state == "alive"


async def test_a_job_claimed_by_a_server_that_died_is_launched_by_the_next(jobs: ManagedJobs) -> None:
    (job_id,) = await jobs.queued()
    assert jobs.store.claim_next("dead", 1, 20) is not None
    await jobs.tick()
    assert not jobs.cluster.drivers, "its lease still holds"
    await jobs.tick(later_s=21)
    assert list(jobs.cluster.drivers) == [f"{job_id}-1"]


async def test_two_servers_on_one_database_run_each_job_once(jobs: ManagedJobs) -> None:
    ids = [jobs.create() for _ in range(4)]
    other = jobs.new_manager("second")
    for _ in range(60):
        jobs.now += 1
        await asyncio.gather(jobs.manager.tick(), other.tick())
        await asyncio.gather(jobs.manager.wait_for_checks(), other.wait_for_checks())
        running = jobs.store.list_with_status("running")
        assert len(running) <= 1
        for job in running:
            if job.handle is not None:
                jobs.store.move(job.id, "succeeded", attempt=job.attempt)
                jobs.cluster.end(job.handle)
    assert [jobs.job(job_id).status for job_id in ids] == ["succeeded"] * 4
    assert sorted(jobs.cluster.drivers) == sorted(f"{job_id}-1" for job_id in ids)
    assert sorted(jobs.cluster.validated) == sorted(ids)


async def test_the_managers_loop_survives_an_unavailable_database(jobs: ManagedJobs) -> None:
    jobs.create()
    broken = Database("sqlite:////nowhere/at/all.db")
    manager = JobManager(JobStore(broken), jobs.cluster, jobs.logs, replace(CONFIG, poll_s=0.001))
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0.05)
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])
    good = JobManager(jobs.store, jobs.cluster, jobs.logs, replace(CONFIG, poll_s=0.001), lambda: jobs.now)
    running = asyncio.create_task(good.run())
    async with asyncio.timeout(30):
        await jobs.cluster.launched.wait()
    running.cancel()
    await asyncio.wait([running])
