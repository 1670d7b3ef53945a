"""Two real engines and two learner ranks on a local Ray: groups, weight updates, a missed bucket, hung processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import pytest_asyncio
import ray

from agent_rft.actors.runtime.gpu_lease import GpuLease
from agent_rft.actors.runtime.watchdog import CHECK_INTERVAL_S, SILENT_S, Watchdog, WatchedActor
from agent_rft.actors.tools.dispatcher_actor import watch_dispatchers
from agent_rft.actors.weights.broadcast_sync import BroadcastSync
from agent_rft.actors.weights.weight_sync import PublishedWeights, WeightSync
from agent_rft.errors import LearnerFailed
from agent_rft.events import ActorSilent, EngineReplaced, Event
from agent_rft.spec.job import JobSpec
from agent_rft.spec.job_file import load_job
from agent_rft.types import Group, Task
from examples.ledger.services import services
from tests.ray.job_actors import MARKS, MAX_BUCKET_BYTES, JobActors
from tests.support.builders import tasks_of
from tests.support.fakes_http import until
from tests.support.paths import LEDGER
from tests.support.processes import our_processes
from tests.support.shared_memory import left_behind

pytestmark = MARKS

CORE = {"num_cpus": 1}


class ForgetfulSync(WeightSync):
    """Skips the first bucket of the first engine, once that is switched on."""

    forget = False

    async def deliver(self, published: PublishedWeights, workers: Any) -> Any:
        if not self.forget:
            return await super().deliver(published, workers)
        self.forget = False
        short = replace(published, buckets=published.buckets[1:])
        return [*await super().deliver(short, workers[:1]), *await super().deliver(published, workers[1:])]


@pytest.fixture(scope="module")
def job() -> Iterator[JobSpec]:
    with services() as environment:
        yield load_job(LEDGER / "job.yaml", environment)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def actors(job: JobSpec) -> AsyncIterator[JobActors]:
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        made = JobActors(job, lambda index: CORE)
        await made.start([CORE, CORE], sync=ForgetfulSync)
        yield made
        await made.close()
    finally:
        ray.shutdown()
    assert left_behind() == set()


@pytest.fixture(scope="module")
def tasks(job: JobSpec) -> list[Task]:
    return tasks_of(Path(job.training_file))[:12]


def freeze(name: str) -> psutil.Process:
    """Stop one of our processes with SIGSTOP, so that it hangs."""
    found = our_processes(name)[0]
    found.send_signal(signal.SIGSTOP)
    return found


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def test_rollouts_are_balanced_and_trained_on_and_both_engines_get_the_new_weights(
    actors: JobActors, tasks: list[Task]
) -> None:
    groups = await actors.sample(tasks)
    assert all(len(group.rollouts) == 8 for group in groups)
    tokens = [stats["sampled_tokens"] for stats in await actors.fleet.engine_stats()]
    assert min(tokens) > 0.3 * max(tokens)

    await actors.learn(groups, version=0)
    running = asyncio.create_task(actors.sample(tasks))
    report = await actors.fleet.publish(1)
    assert (report.version, report.fenced) == (1, ())
    assert 0 < report.canary_gap < 1e-3
    assert report.num_bytes == pytest.approx(560_608 * 4, rel=0.01)
    await running

    later = await actors.sample(tasks[:4])
    versions = {version for group in later for r in group.rollouts for version in r.sampled_versions.tolist()}
    assert versions == {1}
    await actors.learn(later, version=1)


async def test_engines_and_learner_have_priority_over_their_helpers(actors: JobActors) -> None:
    def nice(name: str) -> set[int]:
        """The niceness of each process's busiest thread: Ray's own threads may have started before Ray set it."""
        busiest = [max(process.threads(), key=lambda thread: thread.user_time) for process in our_processes(name)]
        return {os.getpriority(os.PRIO_PROCESS, thread.id) for thread in busiest}

    (first,) = nice("VLLM::EngineCore") | nice("ray::RankProcess")
    behind = [nice(f"ray::{name}") for name in ("RolloutWorker", "DispatcherActor", "GraderPoolActor")]
    assert all(min(values) > first for values in behind), (first, behind)


async def test_an_engine_that_missed_a_bucket_is_fenced_and_replaced(actors: JobActors, tasks: list[Task]) -> None:
    engines = [[worker, *worker.children(recursive=True)] for worker in our_processes("ray::RolloutWorker")]
    actors.sync.forget = True
    report = await actors.fleet.publish(2)
    assert report.fenced == ("engine-0",)
    replaced = [event for event in actors.events if isinstance(event, EngineReplaced)]
    assert [event.engine for event in replaced] == ["engine-0"]
    assert report.canary_gap < 1e-3

    groups = await actors.sample(tasks[:2])
    assert all(len(group.rollouts) == 8 for group in groups)
    async with asyncio.timeout(180):
        await actors.fleet.wait_until_all_ready()
    assert await actors.versions() == [2, 2]
    gone = sorted([is_gone(process) for process in engine] for engine in engines)
    # Worker, core, resource tracker and chat template: of the replaced engine none is left.
    assert gone == [[False] * 4, [True] * 4]
    mapped = [file.path for core in our_processes("EngineCore") for file in core.memory_maps()]
    assert not [path for path in mapped if path.startswith("/dev/shm/sem.")], "who is killed cannot remove their names"
    report = await actors.fleet.publish(3)
    assert report.fenced == ()
    assert report.canary_gap < 1e-3


async def waiting_for_a_tool(engine: WatchedActor) -> None:
    """Wait until a rollout of this engine waits for a tool."""
    while not any(doing.stage == "tool calls" for doing in await engine.heartbeat()):  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.1)


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_hung_processes_are_reported_within_a_minute_and_replaced(actors: JobActors, tasks: list[Task]) -> None:
    """First the dispatcher hangs; then, while rollouts of both engines wait for it, one engine's core."""
    actors.events.clear()

    def watched() -> list[WatchedActor]:
        return [*actors.fleet.watch_targets(), *watch_dispatchers(actors.dispatchers), *actors.learner.watch_targets()]

    def silent(name: str) -> bool:
        """Whether an event names it with rollouts that wait for it."""
        found = [event for event in actors.events if isinstance(event, ActorSilent) and event.actor.startswith(name)]
        return any("trace_" in " ".join(event.work) for event in found)

    def all_named() -> bool:
        return silent("engine-") and silent("the tool dispatcher")

    async def sample_until_named() -> list[Group]:
        """Sample until both are named: on a fast machine one round could end before anything hangs."""
        groups: list[Group] = []
        while not all_named():
            groups += await actors.sample(tasks * 4)
        return groups

    dog = Watchdog(
        watched, actors.fleet.count_rollouts, actors.events.append, give_up_s=SILENT_S + 2 * CHECK_INTERVAL_S
    )
    sampling = asyncio.create_task(sample_until_named())
    await until(lambda: actors.fleet.count_rollouts()[1] > 32, within_s=60)
    frozen = [freeze("ray::DispatcherActor")]
    async with asyncio.timeout(60):
        await asyncio.gather(*map(waiting_for_a_tool, actors.fleet.watch_targets()))
    await dog.check()
    await asyncio.sleep(1)
    frozen.append(freeze("EngineCore"))
    actor = frozen[-1].parent()
    watching = asyncio.create_task(dog.run())
    await until(all_named, within_s=60)
    groups = await sampling
    assert all(len(group.rollouts) >= 4 for group in groups)
    async with asyncio.timeout(180):
        await actors.fleet.wait_until_all_ready()
    (replaced,) = [event for event in actors.events if isinstance(event, EngineReplaced)]
    assert replaced.reason.startswith("the process has not answered")
    assert (await actors.fleet.publish(4)).fenced == ()
    assert await actors.versions() == [4, 4]
    await until(lambda: all(map(is_gone, [*frozen, actor])), within_s=20)
    watching.cancel()


async def test_one_broadcast_updates_both_engines(actors: JobActors, tasks: list[Task]) -> None:
    actors.fleet.connect(BroadcastSync(actors.learner, 1, max_bucket_bytes=MAX_BUCKET_BYTES), actors.learner.logprobs)
    first = (await actors.versions())[0]
    await actors.learn(await actors.sample(tasks), version=first)
    running = asyncio.create_task(actors.sample(tasks))
    for version in (first + 1, first + 2):
        report = await actors.fleet.publish(version)
        assert (report.version, report.fenced) == (version, ())
        assert 0 < report.canary_gap < 1e-3
    await running
    assert await actors.versions() == [first + 2, first + 2]


async def test_with_a_gpu_lease_engines_stop_while_the_learner_computes_and_then_continue(
    actors: JobActors, tasks: list[Task]
) -> None:
    lease = GpuLease(actors.fleet, actors.learner)
    actors.fleet.set_gpu_lease(lease)
    actors.learner.set_gpu_lease(lease)
    await actors.learner.release_devices()
    running = asyncio.create_task(actors.sample(tasks))
    await until(lambda: actors.fleet.count_rollouts()[1] > 0)
    await actors.learner.logprobs(np.arange(3, 40, dtype=np.int32))
    before = [stats["sampled_tokens"] for stats in await actors.fleet.engine_stats()]
    await actors.learner.check_alive()
    assert [stats["sampled_tokens"] for stats in await actors.fleet.engine_stats()] == before
    assert not running.done()
    await actors.learner.release_devices()
    groups = await running
    assert all(len(group.rollouts) == 8 for group in groups)
    version = (await actors.versions())[0]
    await actors.learn(groups, version)
    report = await actors.fleet.publish(version + 1)
    assert report.fenced == () and 0 < report.canary_gap < 1e-3
    assert (await actors.sample(tasks[:1]))[0].newest_version == version + 1


@pytest.mark.nightly
async def test_a_learner_rank_that_stands_still_ends_the_job_and_is_named(actors: JobActors, tasks: list[Task]) -> None:
    events: list[Event] = []
    groups = await actors.sample(tasks[:4])
    dog = Watchdog(actors.learner.watch_targets, None, events.append, give_up_s=SILENT_S)
    watching = asyncio.create_task(dog.run())
    frozen = freeze("ray::RankProcess")
    reason = f"the process has not answered for {SILENT_S:.0f} s"
    with pytest.raises(LearnerFailed, match=rf"learner rank \d of 2 failed in step: {reason}"):
        async with asyncio.timeout(60):
            await actors.learn(groups, version=6)
    assert isinstance(events[0], ActorSilent)
    assert events[0].actor.startswith("learner rank ") and events[0].silent_s == SILENT_S
    await until(lambda: is_gone(frozen))
    watching.cancel()
