"""A fleet with a GPU lease: while the learner has the GPUs, no engine is awake, starts or loads weights."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_rft.actors.rollout.engine_assignment import find_idlest
from agent_rft.actors.rollout.fleet import Fleet
from agent_rft.actors.runtime.gpu_lease import GpuLease
from agent_rft.actors.weights.weight_sync import WeightSync
from agent_rft.events import EngineReplaced, Event
from agent_rft.spec.job import RolloutLimits
from agent_rft.trainer.learner.weight_buckets import BucketLayout
from tests.support.fake_workers import BUCKET, CHECKSUM, FakeWorker
from tests.support.fakes_http import until


class Job:
    """Two engines and a learner with a GPU lease, which the learner has first."""

    def __init__(self) -> None:
        self.incarnation = 1
        self.workers: list[FakeWorker] = []
        self.killed: list[Any] = []
        self.events: list[Event] = []
        self.learner_awake = True
        emit, kill = self.events.append, self.killed.append
        self.fleet = Fleet(self._spawn, 2, find_idlest, 1e-3, RolloutLimits(), emit, kill=kill)
        self.lease = GpuLease(self.fleet, self)
        self.sync = WeightSync(self)
        self.fleet.connect(self.sync, self._canary)
        self.fleet.set_gpu_lease(self.lease)

    async def started(self) -> Job:
        await self.lease.give_to_engines()
        starting = asyncio.create_task(self.fleet.start())
        await until(lambda: len(self.workers) == 2)
        for worker in self.workers:
            worker.may_start.set()
        await starting
        return self

    def _spawn(self, index: int) -> FakeWorker:
        assert not self.learner_awake
        self.workers.append(FakeWorker())
        return self.workers[-1]

    async def _canary(self, tokens: NDArray[np.int32], experts: NDArray[np.integer[Any]] | None) -> NDArray[np.float32]:
        raise AssertionError("nothing was sampled")

    # -- the learner ---------------------------------------------------------------------------------------------------

    async def offload(self) -> None:
        self.learner_awake = False

    async def reload(self) -> None:
        assert all(worker.asleep for worker in self.workers if worker not in self.killed)
        self.learner_awake = True

    async def bucket_layouts(self, max_bytes: int) -> list[BucketLayout]:
        return [[("a", "uint8", (8,))]]

    async def publish_bucket(self, index: int) -> tuple[NDArray[np.uint8], int]:
        assert self.learner_awake
        return BUCKET, CHECKSUM


async def test_weights_are_gathered_with_the_learners_lease_and_loaded_with_the_engines_lease() -> None:
    job = await Job().started()
    report = await job.fleet.publish(1)
    assert report.fenced == () and [worker.version for worker in job.workers] == [1, 1]
    assert not job.learner_awake and not any(worker.asleep for worker in job.workers)


async def test_weights_that_were_published_are_discarded_for_an_update_and_replaced_by_it() -> None:
    job = await Job().started()
    await job.lease.give_to_learner(updates=True)
    assert not any(worker.lacks_weights for worker in job.workers)  # only their files have the first version
    await job.fleet.publish(1)
    await job.lease.give_to_learner()
    assert not any(worker.lacks_weights for worker in job.workers)  # such as for a checkpoint
    await job.lease.give_to_engines()
    await job.lease.give_to_learner(updates=True)
    assert all(worker.lacks_weights for worker in job.workers)
    await job.fleet.publish(2)
    assert [worker.loaded for worker in job.workers] == [[1, 2], [1, 2]]


async def test_discarded_weights_are_loaded_again_if_no_update_follows() -> None:
    """A step is skipped if its gradient is not finite."""
    job = await Job().started()
    await job.fleet.publish(1)
    await job.lease.give_to_learner(updates=True)
    await job.lease.give_to_engines()
    assert [worker.loaded for worker in job.workers] == [[1, 1], [1, 1]]
    assert not any(worker.lacks_weights or worker.asleep for worker in job.workers)
    await job.lease.give_to_learner()
    await job.lease.give_to_engines()
    assert [worker.loaded for worker in job.workers] == [[1, 1], [1, 1]]


async def test_an_engine_that_cannot_load_discarded_weights_is_replaced() -> None:
    job = await Job().started()
    await job.fleet.publish(1)
    await job.lease.give_to_learner(updates=True)
    job.workers[0].cannot_load = True
    await job.lease.give_to_engines()
    assert job.killed == [job.workers[0]] and job.workers[1].loaded == [1, 1]


async def test_engines_without_weights_wait_for_those_of_a_restarted_learner() -> None:
    job = await Job().started()
    await job.fleet.publish(1)
    await job.lease.give_to_learner(updates=True)
    job.sync.last_published = None  # they were lost with the learner
    await job.lease.give_to_restarted_learner()
    await job.lease.give_to_engines()
    assert all(worker.lacks_weights for worker in job.workers) and job.killed == []
    await job.fleet.publish(1)
    assert [worker.loaded for worker in job.workers] == [[1, 1], [1, 1]]
    assert not any(worker.lacks_weights for worker in job.workers)


async def test_an_engine_that_cannot_sleep_is_replaced_once_the_engines_have_the_lease() -> None:
    job = await Job().started()
    job.workers[0].cannot_sleep = True
    await job.lease.give_to_learner()
    assert job.killed == [job.workers[0]] and len(job.workers) == 2
    assert [event.engine for event in job.events if isinstance(event, EngineReplaced)] == ["engine-0"]
    await job.lease.give_to_engines()
    await until(lambda: len(job.workers) == 3)
    job.workers[2].may_start.set()
    await job.fleet.wait_until_all_ready()


async def test_the_learner_waits_for_an_engine_that_starts() -> None:
    job = await Job().started()
    job.workers[0].cannot_sleep = True
    await job.lease.give_to_learner()
    await job.lease.give_to_engines()
    await until(lambda: len(job.workers) == 3)
    learners = asyncio.create_task(job.lease.give_to_learner())
    assert not (await asyncio.wait({learners}, timeout=0.01))[0]
    job.workers[2].may_start.set()
    await learners
    assert job.workers[2].asleep


async def test_an_engine_that_waits_for_lost_weights_lets_a_new_learner_publish_them() -> None:
    job = await Job().started()
    await job.fleet.publish(1)
    job.workers[0].cannot_sleep = True
    await job.lease.give_to_learner()
    await job.lease.give_to_engines()
    await until(lambda: len(job.workers) == 3)
    job.sync.last_published = None  # they were lost with the learner
    job.workers[2].may_start.set()
    await asyncio.wait_for(job.lease.give_to_restarted_learner(), 5)
    job.learner_awake = True
    await job.fleet.publish(1)
    await job.fleet.wait_until_all_ready()
    assert job.workers[2].version == 1


async def test_the_counts_of_rollouts_outlast_the_engines() -> None:
    job = await Job().started()
    before = job.fleet.live_metrics()
    assert before["engine/engine-0/ready"] == 1.0
    await job.fleet.shutdown()
    after = job.fleet.live_metrics()
    assert after == {name: count for name, count in before.items() if not name.startswith("engine/")}
    assert "rollouts_started" in after
