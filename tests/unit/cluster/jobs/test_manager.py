"""The job manager, with a fake cluster and a clock that is set by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.jobs.manager import DriverState, JobManager, ManagerConfig
from cluster.stores.database import Database
from cluster.stores.job_states import JobStatus
from cluster.stores.job_store import JobStore
from cluster.stores.job_tables import JobRecord
from tests.support.jobs import NEW_JOB, StoredJobs, database_with_tables
from trainer.errors import Problem, RftError

CONFIG = ManagerConfig(max_running=1, max_relaunches=2, lease_s=20, silent_s=20, hung_s=300, stop_grace_s=30)
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

    async def validate(self, job: JobRecord) -> list[Problem]:
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

    async def state(self, handle: str) -> DriverState:
        if self.unavailable is not None:
            raise self.unavailable
        return self.drivers.get(handle, DriverState("unknown"))

    async def stop(self, handle: str) -> None:
        self.stopped.append(handle)
        self.end(handle)

    def end(self, handle: str, output: str = "") -> None:
        self.drivers[handle] = DriverState("ended", output)


class World(StoredJobs):
    def __init__(self, folder: Path) -> None:
        super().__init__(database_with_tables(folder))
        self.cluster = FakeCluster()
        self.manager = self.new_manager()

    def new_manager(self, name: str = "first") -> JobManager:
        return JobManager(self.store, self.cluster, CONFIG, lambda: self.now, name)

    def create(self) -> str:
        return self.store.create(NEW_JOB)[0].id

    def job(self, job_id: str) -> JobRecord:
        return self.store.get(job_id)

    def messages(self, job_id: str) -> list[str]:
        return [event.message for event in self.store.events(job_id, limit=100)[0]][::-1]

    async def tick(self, *, later_s: float = 1.0, manager: JobManager | None = None) -> None:
        self.now += later_s
        manager = manager or self.manager
        await manager.tick()
        await manager.validated()

    async def queued(self, count: int = 1) -> list[str]:
        """New jobs that the next tick may start."""
        self.cluster.hold.clear()
        ids = [self.create() for _ in range(count)]
        await self.manager.tick()
        assert [self.job(job_id).status for job_id in ids] == ["validating_files"] * count
        self.cluster.hold.set()
        await self.manager.validated()
        return ids

    async def started(self) -> str:
        (job_id,) = await self.queued()
        await self.tick()
        assert self.job(job_id).status == "running"
        return job_id

    def beat(self, job_id: str) -> JobStatus | None:
        return self.store.heartbeat(job_id, self.job(job_id).attempt)


@pytest.fixture
async def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.database.close()


# -- the normal course -------------------------------------------------------------------------------------------------


async def test_a_job_is_validated_queued_run_and_ended_by_its_driver(world: World) -> None:
    first, second = await world.queued(2)
    assert [world.job(i).status for i in (first, second)] == ["queued"] * 2
    await world.tick()
    assert [world.job(i).status for i in (first, second)] == ["running", "queued"]
    assert list(world.cluster.drivers) == [f"{first}-1"]
    assert "The job is waiting in the queue: this server runs 1 job at a time" in world.messages(second)
    world.store.move(first, "succeeded", attempt=1, fine_tuned_model="ft:a")
    await world.tick()
    assert world.job(second).status == "queued", "the first one's driver is still shutting down"
    world.cluster.end(f"{first}-1")
    await world.tick()
    await world.tick()
    assert (world.job(first).handle, world.job(second).status) == (None, "running")
    assert world.messages(second).count("The job is waiting in the queue: this server runs 1 job at a time") == 1


async def test_an_invalid_file_fails_the_job_with_the_apis_code_and_the_line(world: World) -> None:
    world.cluster.problems = [BAD_LINE, replace(BAD_LINE, line=9)]
    job_id = world.create()
    await world.tick()
    job = world.job(job_id)
    assert job.status == "failed" and job.error is not None
    assert (job.error.code, job.error.param) == ("invalid_training_file", "training_file")
    assert "line 3" in job.error.message and "1 more" in job.error.message
    assert sum("line 9" in message for message in world.messages(job_id)) == 1
    assert not world.cluster.drivers


async def test_a_crashed_validation_fails_the_job_with_its_output(world: World) -> None:
    world.cluster.unavailable = RftError("the validation process exited with code 1: MemoryError")
    job_id = world.create()
    await world.tick()
    error = world.job(job_id).error
    assert error is not None and error.code == "validation_failed" and "MemoryError" in error.message


# -- requests of clients -----------------------------------------------------------------------------------------------


async def test_a_job_cancelled_during_validation_stays_cancelled(world: World) -> None:
    world.cluster.hold.clear()
    job_id = world.create()
    await world.manager.tick()
    world.store.move(job_id, "cancelled")
    world.cluster.hold.set()
    await world.manager.validated()
    await world.tick()
    assert world.job(job_id).status == "cancelled" and not world.cluster.drivers


async def test_the_driver_of_a_cancelled_job_learns_of_it_and_is_stopped_if_it_does_not_exit(world: World) -> None:
    job_id = await world.started()
    world.store.move(job_id, "cancelled")
    assert world.beat(job_id) == "cancelled"
    await world.tick()
    assert world.cluster.stopped == []
    await world.tick(later_s=31)
    assert world.cluster.stopped == [f"{job_id}-1"]
    await world.tick()
    assert world.job(job_id).handle is None


async def test_a_resumed_job_gets_a_new_driver_once_the_old_one_is_gone(world: World) -> None:
    job_id = await world.started()
    world.store.move(job_id, "paused")
    assert world.beat(job_id) == "paused"
    world.store.move(job_id, "queued")
    await world.tick(later_s=60)
    assert world.job(job_id).status == "queued", "two drivers would write to one folder"
    assert world.cluster.stopped == []
    world.cluster.end(f"{job_id}-1")
    await world.tick()
    await world.tick()
    assert world.job(job_id).status == "running" and world.cluster.drivers[f"{job_id}-2"].state == "alive"


# -- lost drivers ------------------------------------------------------------------------------------------------------


async def test_a_lost_driver_is_replaced_and_too_many_fail_the_job_with_the_last_output(world: World) -> None:
    job_id = await world.started()
    for attempt in (1, 2):
        world.cluster.end(f"{job_id}-{attempt}", "Killed: https://tool.example/x?token=secret-1")
        await world.tick()
        assert world.job(job_id).status == "running"
        assert world.cluster.drivers[f"{job_id}-{attempt + 1}"].state == "alive"
    world.cluster.end(f"{job_id}-3", "Killed: out of memory")
    await world.tick()
    error = world.job(job_id).error
    assert error is not None and error.code == "driver_lost"
    assert "lost 3 times" in error.message and "out of memory" in error.message
    assert "secret-1" not in "".join(world.messages(job_id))
    assert world.now - 1_000 < 60


async def test_a_checkpoint_resets_the_count_of_lost_drivers(world: World) -> None:
    job_id = await world.started()
    for attempt in range(1, 8):
        world.store.note(job_id, attempt, failures=0)  # as the driver does at each new checkpoint
        world.cluster.end(f"{job_id}-{attempt}")
        await world.tick()
        assert world.job(job_id).status == "running"


async def test_a_driver_that_ended_its_job_is_not_lost(world: World) -> None:
    job_id = await world.started()
    world.store.move(job_id, "succeeded", attempt=1)
    world.cluster.end(f"{job_id}-1")
    await world.tick()
    assert world.job(job_id).status == "succeeded" and len(world.cluster.drivers) == 1


async def test_a_driver_the_cluster_has_no_record_of_is_lost_once_its_heartbeats_stop(world: World) -> None:
    job_id = await world.started()
    del world.cluster.drivers[f"{job_id}-1"]  # as after a restart of the cluster
    await world.tick(later_s=15)
    assert list(world.cluster.drivers) == []
    world.beat(job_id)
    await world.tick(later_s=15)
    assert list(world.cluster.drivers) == []
    await world.tick(later_s=15)
    assert list(world.cluster.drivers) == [f"{job_id}-2"]


async def test_a_hung_driver_is_stopped_and_replaced(world: World) -> None:
    job_id = await world.started()
    await world.tick(later_s=299)
    assert world.cluster.stopped == []
    await world.tick(later_s=2)
    assert world.cluster.stopped == [f"{job_id}-1"] and world.cluster.drivers[f"{job_id}-2"].state == "alive"


async def test_a_cluster_that_is_briefly_unavailable_does_not_count_as_a_failure(world: World) -> None:
    (job_id,) = await world.queued()
    world.cluster.unavailable = RftError("no agent yet")
    await world.tick()
    await world.tick(later_s=30)
    assert world.job(job_id).status == "running"
    assert sum("no agent yet" in message for message in world.messages(job_id)) == 1
    world.cluster.unavailable = None
    await world.tick()
    assert list(world.cluster.drivers) == [f"{job_id}-1"] and world.job(job_id).failures == 0


async def test_a_cluster_that_never_starts_a_driver_fails_the_job_with_its_error(world: World) -> None:
    (job_id,) = await world.queued()
    world.cluster.unavailable = RftError("no agent")
    for _ in range(12):
        await world.tick(later_s=31)
    error = world.job(job_id).error
    assert error is not None and error.code == "driver_lost" and "no agent" in error.message


# -- servers that die --------------------------------------------------------------------------------------------------


async def test_a_new_manager_keeps_live_drivers_and_replaces_lost_ones(world: World) -> None:
    job_id = await world.started()
    second = world.new_manager("second")
    world.beat(job_id)
    await world.tick(later_s=21, manager=second)
    assert list(world.cluster.drivers) == [f"{job_id}-1"]
    world.cluster.end(f"{job_id}-1", "Killed")
    await world.tick(manager=second)
    assert world.cluster.drivers[f"{job_id}-2"].state == "alive"


async def test_a_job_claimed_by_a_server_that_died_is_launched_by_the_next(world: World) -> None:
    (job_id,) = await world.queued()
    assert world.store.claim_next("dead", 1, 20) is not None
    await world.tick()
    assert not world.cluster.drivers, "its lease still holds"
    await world.tick(later_s=21)
    assert list(world.cluster.drivers) == [f"{job_id}-1"]


async def test_two_servers_on_one_database_run_each_job_once(world: World) -> None:
    ids = [world.create() for _ in range(4)]
    other = world.new_manager("second")
    for _ in range(60):
        world.now += 1
        await asyncio.gather(world.manager.tick(), other.tick())
        await asyncio.gather(world.manager.validated(), other.validated())
        running = world.store.with_status("running")
        assert len(running) <= 1
        for job in running:
            if job.handle is not None:
                world.store.move(job.id, "succeeded", attempt=job.attempt)
                world.cluster.end(job.handle)
    assert [world.job(job_id).status for job_id in ids] == ["succeeded"] * 4
    assert sorted(world.cluster.drivers) == sorted(f"{job_id}-1" for job_id in ids)
    assert sorted(world.cluster.validated) == sorted(ids)


async def test_the_managers_loop_survives_an_unavailable_database(world: World) -> None:
    world.create()
    broken = Database("sqlite:////nowhere/at/all.db")
    manager = JobManager(JobStore(broken), world.cluster, replace(CONFIG, poll_s=0.001))
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0.05)
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])
    good = JobManager(world.store, world.cluster, replace(CONFIG, poll_s=0.001), lambda: world.now)
    running = asyncio.create_task(good.run())
    async with asyncio.timeout(30):
        await world.cluster.launched.wait()
    running.cancel()
    await asyncio.wait([running])
