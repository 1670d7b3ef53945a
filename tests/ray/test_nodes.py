"""Several nodes (on one machine): a job waits for a node, engines join late, and nodes die."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray
from ray._common.utils import reset_ray_address
from ray.cluster_utils import Cluster
from ray.experimental import get_object_locations

from agent_rft.cluster.ray_cluster.live_nodes import read_live_nodes
from agent_rft.cluster.ray_cluster.reservations import Reservations
from agent_rft.cluster.run.pre_stop import stop_runs
from agent_rft.events import EngineJoined, EngineReplaced, EngineRestarted, EngineWaiting
from agent_rft.spec.job import JobSpec
from agent_rft.spec.job_file import load_job
from agent_rft.types import Task
from examples.ledger.services import services
from tests.ray.job_actors import MARKS, JobActors
from tests.support.builders import tasks_of
from tests.support.fakes_http import until
from tests.support.paths import LEDGER, ROOT
from tests.support.plans import plan_placement

pytestmark = MARKS

HEAD: dict[str, Any] = {
    "num_cpus": 0,
    "include_dashboard": False,
    # By default, Ray takes half a minute to notice a killed node.
    "_system_config": {"health_check_period_ms": 500, "health_check_failure_threshold": 4},
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """A head without cores, and one node with one core."""
    cluster = Cluster(initialize_head=True, head_node_args=HEAD)
    reset_ray_address()  # Ray stores the address, and other tests would connect to it
    try:
        cluster.add_node(num_cpus=1)
        ray.init(cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def job() -> Iterator[JobSpec]:
    with services() as environment:
        job = load_job(LEDGER / "job.yaml", environment)
        yield job.model_copy(update={"cluster": job.cluster.model_copy(update={"engines": 2})})


@pytest.fixture(scope="module")
def tasks(job: JobSpec) -> list[Task]:
    return tasks_of(Path(job.training_file))[:8]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(nodes: Cluster, job: JobSpec) -> AsyncIterator[JobActors]:
    """A job with two engines and one learner rank, which starts once a missing node has joined."""
    plan, news = plan_placement(job, read_live_nodes(), None, 1024), list[str]()
    assert plan.resource_problems[0].message.startswith("the job needs 3 cores (engines 2 x 1, learner ranks 1 x 1)")
    seats = Reservations(plan.placement, "run")
    waiting = asyncio.create_task(seats.wait(news.append, wait_for_nodes_s=60))
    await until(lambda: bool(news), within_s=20)
    assert news == ["2 cores, 0 GPUs required, 1 cores, 0 GPUs free; not placed: learner rank 0"]
    nodes.add_node(num_cpus=1)
    at_start = await asyncio.wait_for(waiting, 30)
    assert at_start == [0]
    made = JobActors(job, seats.engine_options, seats.helper_options, wait_for_resources=seats.wait_for_engine)
    await made.start([seats.rank_options(0)], at_start)
    yield made
    await made.close()
    seats.release()


DRIVER = """
import asyncio, sys, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from agent_rft.cluster.run.stop_signals import StopSignals

@ray.remote(num_cpus=0)
class Rank:
    def ready(self): pass

async def main(address, node):
    stop = asyncio.Event()
    with StopSignals() as signals, signals.on_first(stop.set):
        ray.init(address, log_to_driver=False)
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        rank = Rank.options(name="run:learner-rank-0", scheduling_strategy=there).remote()
        await rank.ready.remote()
        print("ready", flush=True)
        await stop.wait()
        print("saved", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_node_that_is_to_end_first_has_its_runs_stop(nodes: Cluster) -> None:
    """As a pod's preStop hook does, here for the node of a rank whose driver is on another one."""
    (node,) = [found["NodeID"] for found in ray.nodes() if found["Resources"].get("CPU")]
    command = [sys.executable, "-c", DRIVER, nodes.address, node]
    driver = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT)
    assert driver.stdout is not None
    assert await driver.stdout.readline() == b"ready\n"
    assert await asyncio.to_thread(stop_runs, node, 0.0, present) != set()  # it is asked, but has not ended yet
    assert await asyncio.to_thread(stop_runs, node, 60.0, present) == set()
    assert await driver.communicate() == (b"saved\n", None)
    assert driver.returncode == 0
    assert await asyncio.to_thread(stop_runs, node, 60.0, present) == set()


def present() -> bool:
    """The head answers."""
    return True


def node_of(actor: Any) -> str:
    (found,) = [state for state in ray._private.state.actors().values() if state["ActorID"] == actor._actor_id.hex()]
    return str(found["Address"]["NodeID"])


async def test_engine_and_learner_are_on_different_nodes_and_weights_cross(run: JobActors, tasks: list[Task]) -> None:
    engine, rank = node_of(run.workers[0]), node_of(run.learner._actors[0])
    assert engine != rank
    await run.learn(await run.sample(tasks), version=0)
    report = await run.fleet.publish(1)
    assert (report.version, report.fenced) == (1, ())
    assert 0 < report.canary_gap < 1e-3
    assert run.sync.last_published is not None
    buckets = [bucket for bucket, _ in run.sync.last_published.buckets]
    for where in get_object_locations(buckets).values():
        assert {engine, rank} <= set(where["node_ids"])  # the engine's own node has a copy, too


@pytest.mark.nightly
async def test_an_engine_joins_during_the_run_with_the_current_weights(
    run: JobActors, nodes: Cluster, tasks: list[Task]
) -> None:
    assert run.events == [EngineWaiting(engine="engine-1")]
    (version,) = await run.versions()
    await run.learn(await run.sample(tasks), version)
    await run.fleet.publish(version + 1)
    nodes.add_node(num_cpus=1)
    async with asyncio.timeout(180):
        await run.fleet.wait_until_all_ready()
    assert await run.versions() == [version + 1, version + 1]
    assert run.events[-1] == EngineJoined(engine="engine-1")
    assert node_of(run.workers[1]) not in {node_of(run.workers[0]), node_of(run.learner._actors[0])}
    await run.learn(await run.sample(tasks), version + 1)
    report = await run.fleet.publish(version + 2)
    assert report.fenced == ()
    assert report.canary_gap < 1e-3


@pytest.mark.nightly
async def test_an_engine_on_a_dead_node_is_replaced_on_another(
    run: JobActors, nodes: Cluster, tasks: list[Task]
) -> None:
    lost, versions = run.workers[1], await run.versions()
    (dying,) = [node for node in nodes.worker_nodes if node.node_id == node_of(lost)]
    nodes.add_node(num_cpus=1)
    running = asyncio.create_task(run.sample(tasks * 4))
    await asyncio.sleep(1)  # rollouts are in flight on both
    nodes.remove_node(dying, allow_graceful=False)
    await until(lambda: run.workers[1] is not lost, within_s=60)
    ray.kill(run.workers[1])  # as if Ray had placed it on another dying node
    groups = await running
    assert all(len(group.rollouts) == 8 for group in groups)
    async with asyncio.timeout(180):
        await run.fleet.wait_until_all_ready()
    assert await run.versions() == versions
    assert node_of(run.workers[1]) != dying.node_id
    about_it = [event for event in run.events if getattr(event, "engine", "") == "engine-1"]
    assert {EngineReplaced, EngineRestarted} <= set(map(type, about_it))
    assert run.events[-1] == EngineJoined(engine="engine-1")
