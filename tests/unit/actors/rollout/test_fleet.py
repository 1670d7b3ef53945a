"""A fleet of two engines: which of them gets a rollout, and how often they are replaced."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agent_rft.actors.rollout.canary import CANARY_LIMITS
from agent_rft.actors.rollout.engine_assignment import GroupAffinity
from agent_rft.actors.rollout.fleet import EndpointSource, Fleet
from agent_rft.actors.weights.weight_sync import WeightSync
from agent_rft.errors import EngineFailed, GraderFailed, TrainingHalted
from agent_rft.events import EngineReplaced, EngineUnstable, Event
from agent_rft.spec.job import RolloutLimits
from agent_rft.trainer.learner.weight_buckets import BucketLayout
from agent_rft.types import Group, SyncReport
from tests.support.builders import group_request, task
from tests.support.fake_workers import BUCKET, CHECKSUM, FakeWorker
from tests.support.fakes_http import MovableLoop, in_movable_time, until

SLOTS = 16


class TwoEngines:
    """A fleet with two engines; workers start only while `starts` is set, and load weights while `loads` is.

    The learner says that its weights have `num_bytes`.
    """

    def __init__(
        self,
        limits: RolloutLimits | None = None,
        start_timeout_s: float = 60.0,
        num_bytes: int = 8,
        endpoints: Sequence[EndpointSource] = (),
        is_mixture: bool = False,
    ) -> None:
        self.incarnation = 1
        self.starts = self.loads = True
        self._num_bytes = num_bytes
        self.workers: list[list[FakeWorker]] = [[], []]
        self.events: list[Event] = []
        self.killed: list[Any] = []
        self.fleet = Fleet(
            self._spawn,
            2,
            GroupAffinity(SLOTS),
            CANARY_LIMITS["bfloat16" if is_mixture else "float32"],
            limits or RolloutLimits(),
            self.events.append,
            kill=self.killed.append,
            endpoints=endpoints,
            start_timeout_s=start_timeout_s,
            is_mixture=is_mixture,
        )
        self.fleet.connect(WeightSync(self), self._logprobs)
        self._sampling: list[asyncio.Task[Group]] = []

    async def started(self) -> TwoEngines:
        await self.fleet.start()
        return self

    def _spawn(self, index: int) -> FakeWorker:
        worker = FakeWorker()
        if self.starts:
            worker.may_start.set()
        if not self.loads:
            worker.may_load.clear()
        self.workers[index].append(worker)
        return worker

    @property
    def now(self) -> list[FakeWorker]:
        """The current worker of each engine."""
        return [workers[-1] for workers in self.workers]

    @property
    def rows(self) -> list[Counter[str]]:
        """Rollouts in flight on each engine, by row."""
        return [Counter(worker.rows) for worker in self.now]

    @property
    def in_flight(self) -> int:
        return sum(counts.total() for counts in self.rows)

    async def sample(self, *rows: str, size: int = 8) -> list[asyncio.Task[Group]]:
        """Start a group for each row, and wait until all their rollouts are on an engine."""
        expected = self.in_flight + len(rows) * size
        groups = [group_request(i, size, task=task(row)) for i, row in enumerate(rows)]
        started = [asyncio.create_task(self.fleet.sample(group)) for group in groups]
        self._sampling += started
        await until(lambda: self.in_flight == expected)
        return started

    async def finish_group(self) -> None:
        """Sample a group, whose first rollout becomes the canary sequence."""
        [group] = await self.sample("canary")
        for worker in self.now:
            worker.end_all()
        await group

    async def publish_with_gaps(self, version: int, *gaps: float) -> SyncReport:
        """Publish a version after which the engines differ this much from the learner."""
        for worker, gap in zip(self.now, gaps, strict=True):
            worker.canary_values = np.full(4, gap, np.float32)
        return await self.fleet.publish(version)

    async def replaced(self, *workers: FakeWorker) -> None:
        """Wait until other workers are ready in place of these."""
        await until(lambda: not set(workers) & set(self.now))
        await self.fleet.wait_until_all_ready()

    def unstable(self) -> list[tuple[str, int]]:
        return [(event.engine, event.times) for event in self.events if isinstance(event, EngineUnstable)]

    # -- the learner ---------------------------------------------------------------------------------------------------

    async def _logprobs(
        self, token_ids: NDArray[np.int32], experts: NDArray[np.integer[Any]] | None
    ) -> NDArray[np.float32]:
        return np.zeros(len(token_ids) - 1, dtype=np.float32)

    async def bucket_layouts(self, max_bytes: int) -> list[BucketLayout]:
        return [[("a", "uint8", (self._num_bytes,))]]

    async def publish_bucket(self, index: int) -> tuple[NDArray[np.uint8], int]:
        return BUCKET, CHECKSUM

    async def lose(self, index: int) -> None:
        """Let an engine die under a rollout, and wait for its replacement."""
        other, engine = self.now[1 - index], self.now[index]
        groups = await self.sample(f"lost-{len(self.killed)}", size=4)
        engine.die()
        await self.replaced(engine)
        await until(lambda: self.in_flight == 4)
        for worker in {other, *self.now}:
            worker.end_all()
        await asyncio.gather(*groups)


async def test_groups_that_start_together_get_an_engine_each() -> None:
    job = await TwoEngines().started()
    groups = await job.sample("a", "b")
    assert job.rows == [{"a": 8}, {"b": 8}]
    for worker in job.now:
        worker.end_all()
    assert [len((await group).rollouts) for group in groups] == [8, 8]


async def test_workers_get_the_admission_number_of_each_group() -> None:
    job = await TwoEngines().started()
    groups = await job.sample("a", "b")
    admitted = {(request.task.row_id, request.index) for worker in job.now for request in worker.requests}
    assert admitted == {("a", 0), ("b", 1)}
    for worker in job.now:
        worker.end_all()
    await asyncio.gather(*groups)


async def test_single_group_uses_both_engines() -> None:
    job = await TwoEngines().started()
    await job.sample("a")
    assert job.rows == [{"a": 4}, {"a": 4}]


async def test_retry_goes_to_the_engine_of_its_group() -> None:
    job = await TwoEngines().started()
    await job.sample("a", "b", size=4)
    job.now[0].end("a", 1, discarded=GraderFailed.reason)
    await until(lambda: len(job.now[0].requests) == 5)
    assert (job.now[0].requests[-1].sample, job.now[0].requests[-1].attempt) == (1, 1)
    assert job.rows == [{"a": 4}, {"b": 4}]


async def test_group_that_is_sampled_again_is_graded() -> None:
    job = await TwoEngines(RolloutLimits(max_rollout_retries=0)).started()
    (group,) = await job.sample("a", size=2)
    for sample, worker in [(s.sample, w) for w in job.now for s in w.requests]:
        worker.end("a", sample, discarded=GraderFailed.reason)
    await until(lambda: sum(len(worker.requests) for worker in job.now) == 4)
    await until(lambda: job.in_flight == 2)
    for worker in job.now:
        worker.end_all()
    assert len((await group).rollouts) == 2 and len(group.result().discarded) == 2


async def test_rollouts_of_an_engine_that_died_go_to_the_other_engine() -> None:
    job = await TwoEngines().started()
    groups = await job.sample("a", "b", size=4)
    job.starts, dead = False, job.now[0]
    dead.die()
    await until(lambda: job.rows[1] == {"a": 4, "b": 4})
    job.now[1].end_all()
    assert [len((await group).rollouts) for group in groups] == [4, 4]
    assert [engine.rollouts for engine in job.fleet.engine_states()] == [0, 0]


async def test_replaced_engine_begins_without_rollouts_and_takes_new_groups() -> None:
    job = await TwoEngines().started()
    await job.sample("a", "b", size=4)
    dead = job.now[0]
    dead.die()
    await job.replaced(dead)
    await until(lambda: job.in_flight == 8)
    loads = [engine.rollouts for engine in job.fleet.engine_states()]
    assert loads == [counts.total() for counts in job.rows]
    await job.sample("c", size=2)
    assert job.rows[loads.index(min(loads))]["c"] >= 1


async def test_fenced_engine_gets_no_rollouts() -> None:
    job = await TwoEngines().started()
    job.starts, job.now[0].cannot_load = False, True
    assert (await job.fleet.publish(1)).fenced == ("engine-0",)
    await job.sample("a")
    assert job.rows[1] == {"a": 8}


async def test_engine_of_a_dense_model_is_fenced_at_the_limit_of_the_dtype() -> None:
    job = await TwoEngines().started()
    await job.finish_group()
    report = await job.publish_with_gaps(1, 0.9e-3, 1.1e-3)
    assert report.fenced == ("engine-1",) and report.canary_gap == pytest.approx(0.9e-3)


async def test_engine_of_a_mixture_is_fenced_relative_to_the_first_gap() -> None:
    """Random experts have a gap of 0.098 nats. Twice this gap, or 0.3 nats, is an outdated engine."""
    job = await TwoEngines(is_mixture=True).started()
    await job.finish_group()
    report = await job.publish_with_gaps(1, 0.098, 0.11)
    assert report.fenced == () and report.canary_gap == pytest.approx(0.11)
    job.starts, outdated = False, job.now[1]
    assert (await job.publish_with_gaps(2, 0.15, 0.25)).fenced == ("engine-1",)
    assert job.killed == [outdated]
    [replaced] = [event for event in job.events if isinstance(event, EngineReplaced)]
    assert replaced.reason == (
        "the engine's log-probabilities differ from the learner's in version 2 by 0.25 nats (limit 0.196)"
    )


async def test_engine_of_a_mixture_is_fenced_at_the_first_gap_if_it_is_above_the_maximum() -> None:
    job = await TwoEngines(is_mixture=True).started()
    await job.finish_group()
    job.starts = False
    assert (await job.publish_with_gaps(1, 0.31, 0.5)).fenced == ("engine-0", "engine-1")


async def test_start_that_takes_too_long_fails() -> None:
    job = TwoEngines(start_timeout_s=0.01)
    job.starts = False
    with pytest.raises(EngineFailed, match=r"engine-\d did not start within 0.01 s"):
        await job.fleet.start()


async def test_engines_may_be_replaced_three_times_each_between_two_updates() -> None:
    job = await TwoEngines().started()
    for index in (0, 1, 0, 1, 0, 1):
        await job.lose(index)
    await job.sample("a", size=4)
    job.now[0].die()
    await until(lambda: job.fleet.engine_states()[0].state != "ready")
    with pytest.raises(TrainingHalted, match="engine-0 cannot be replaced again: engines were replaced 7 times since"):
        await job.fleet.wait_until_all_ready()


async def test_each_weight_update_renews_the_replacements() -> None:
    job = await TwoEngines().started()
    for version in range(1, 6):
        for index in (0, 1, 0, 1):
            await job.lose(index)
        await job.fleet.publish(version)
    assert job.fleet.live_metrics()["engine_replacements"] == 20.0


async def test_update_that_no_engine_takes_does_not_renew_the_replacements() -> None:
    job = await TwoEngines().started()
    for version in range(1, 4):
        for worker in job.now:
            worker.cannot_load = True
        before = job.now
        assert len((await job.fleet.publish(version)).fenced) == 2
        await job.replaced(*before)
    for worker in job.now:
        worker.cannot_load = True
    await job.fleet.publish(4)
    with pytest.raises(TrainingHalted, match="cannot be replaced again"):
        await job.fleet.wait_until_all_ready()


async def test_version_that_is_published_again_does_not_renew_the_replacements() -> None:
    job = await TwoEngines().started()
    await job.fleet.publish(1)
    for index in (0, 1, 0, 1, 0, 1):
        await job.lose(index)
        await job.fleet.publish(1)
    await job.sample("a", size=4)
    job.now[0].die()
    await until(lambda: job.fleet.engine_states()[0].state != "ready")
    with pytest.raises(TrainingHalted, match="cannot be replaced again"):
        await job.fleet.wait_until_all_ready()


async def test_engine_that_each_update_kills_is_reported_as_unstable() -> None:
    job = await TwoEngines().started()
    for version in range(1, 7):
        job.now[1].cannot_load = True
        before = job.now[1]
        assert (await job.fleet.publish(version)).fenced == ("engine-1",)
        await job.replaced(before)
    assert job.unstable() == [("engine-1", 3), ("engine-1", 6)]
    assert sum(isinstance(event, EngineReplaced) for event in job.events) == 6


async def test_engine_that_works_from_one_update_to_the_next_is_stable_again() -> None:
    job = await TwoEngines().started()
    for version in (1, 2):
        await job.lose(1)
        await job.fleet.publish(version)
    await job.fleet.publish(3)
    await job.lose(1)
    assert job.unstable() == []


async def test_a_step_counts_how_busy_the_engines_were() -> None:
    engines = await TwoEngines().started()
    assert "engine_busy_share" not in await engines.fleet.get_counts()  # since when?
    first, second = engines.now
    first.busy_s, second.busy_s = 1e6, None
    assert (await engines.fleet.get_counts())["engine_busy_share"] > 0
    first.busy_s = None
    assert "engine_busy_share" not in await engines.fleet.get_counts()


def test_update_of_a_large_model_may_take_hours_and_only_an_engine_that_hangs_is_given_up() -> None:
    """140 GB to two engines at 50 MB/s are 5,600 s."""

    async def test(loop: MovableLoop) -> None:
        job = TwoEngines(num_bytes=140_000_000_000)
        job.loads = False
        await job.started()
        slow, stuck = job.now
        publishing = asyncio.create_task(job.fleet.publish(1))
        await until(lambda: slow.is_loading and stuck.is_loading)
        for seconds in (700.0, 4_800.0):
            loop.move(seconds)
            await asyncio.sleep(0.02)
            assert not publishing.done()
        slow.may_load.set()
        await until(lambda: slow.version == 1)
        loop.move(200.0)
        assert (await publishing).fenced == ("engine-1",)
        (replaced,) = [event for event in job.events if isinstance(event, EngineReplaced)]
        assert replaced.reason == "an engine did not load version 1 within 5600 s"

        await until(lambda: job.now[1] is not stuck and job.now[1].is_loading)
        loop.move(5_500.0)
        await asyncio.sleep(0.02)
        job.now[1].may_load.set()
        await job.fleet.wait_until_all_ready()
        assert job.now[1].version == 1, "an engine that joins has as much time"

    in_movable_time(test)


def test_update_of_a_small_model_that_hangs_is_given_up_after_ten_minutes() -> None:
    async def test(loop: MovableLoop) -> None:
        job = TwoEngines()
        job.loads = False
        await job.started()
        slow, stuck = job.now
        publishing = asyncio.create_task(job.fleet.publish(1))
        await until(lambda: slow.is_loading and stuck.is_loading)
        loop.move(590.0)
        await asyncio.sleep(0.02)
        assert not publishing.done()
        slow.may_load.set()
        await until(lambda: slow.version == 1)
        loop.move(20.0)
        assert (await publishing).fenced == ("engine-1",)

    in_movable_time(test)


async def test_an_outage_lasts_until_all_breakers_are_closed() -> None:
    breakers = {"search": "closed", "grader": "closed"}

    async def stats() -> dict[str, dict[str, Any]]:
        return {name: {"breaker": state} for name, state in breakers.items()}

    engines = TwoEngines(endpoints=[stats])
    assert not await engines.fleet.has_outage()
    for state, is_down in (("open", True), ("half_open", True), ("closed", False)):
        breakers["grader"] = state
        assert await engines.fleet.has_outage() is is_down
