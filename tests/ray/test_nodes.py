"""Several nodes (on one machine): a job waits for one, engine and learner are apart, engines join and nodes die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray
from ray._common.utils import reset_ray_address
from ray.cluster_utils import Cluster
from ray.experimental import get_object_locations

from actors.dispatcher_actor import start_dispatchers
from actors.engine import EngineConfig
from actors.episode import EpisodeSpec
from actors.fleet import CANARY_LIMITS, Fleet
from actors.grader_pool import GraderPoolActor
from actors.learner import LearnerConfig
from actors.learner_group import LearnerGroup
from actors.rollout_worker import RolloutWorker, WorkerConfig
from actors.weight_sync import WeightSync
from cluster.nodes import live_nodes
from cluster.placement import ClusterPlan, plan_placement
from cluster.seats import Seats
from examples.ledger.services import services
from tests.fakes import tasks_of
from tests.fakes_http import LOCAL, until
from trainer.advantage import advantages
from trainer.jobfile import load_job
from trainer.spec import AlgorithmSpec, JobSpec
from trainer.types import Group, GroupRequest, Task, TrainSequence

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

LEDGER = Path(__file__).parents[2] / "examples" / "ledger"
HEAD: dict[str, Any] = {
    "num_cpus": 0,
    "include_dashboard": False,
    # Else it takes half a minute until a node that was killed is known to be dead.
    "_system_config": {"health_check_period_ms": 500, "health_check_failure_threshold": 4},
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """A head without cores, and one node with one core."""
    cluster = Cluster(initialize_head=True, head_node_args=HEAD)
    reset_ray_address()  # the word that it leaves of itself: other tests would take it for theirs
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


class Run:
    """What a driver holds of a job with two engines and one learner rank."""

    def __init__(self, job: JobSpec) -> None:
        self.events: list[str] = []
        self.plan: ClusterPlan = plan_placement(job, live_nodes(), None, 1024)
        self.seats = Seats(self.plan.placement, "run")
        self.tasks = tasks_of(Path(job.training_file))[:8]
        self.workers: dict[int, Any] = {}
        self.learner: LearnerGroup
        self.fleet: Fleet
        self._job = job

    async def start(self, at_start: list[int]) -> None:
        reinforcement, graders, seats = self._job.reinforcement, GraderPoolActor, self.seats
        config = WorkerConfig(
            EngineConfig(self._job.model, "float32", context_length=1024, max_num_seqs=32, seed=0),
            EpisodeSpec("7", reinforcement.limits, reinforcement.reward, reinforcement.max_episode_steps, 1024),
            "hermes",
            {},
            start_dispatchers(reinforcement.tools, LOCAL, 1, options_of=seats.beside),
            graders.options(**seats.beside("grader-pool")).remote(reinforcement, LOCAL),
        )
        worker = ray.remote(RolloutWorker)

        def spawn(index: int) -> Any:
            self.workers[index] = worker.options(max_concurrency=1000, **seats.engine(index)).remote(config)
            return self.workers[index]

        def tell(level: str, text: str) -> None:
            self.events.append(text)

        limit = CANARY_LIMITS["float32"]
        self.fleet = Fleet(spawn, 2, limit, reinforcement.limits, tell, placed=seats.engine_placed)
        learner = LearnerConfig(Path(self._job.model), steps=10, learning_rate=1e-2, algorithm=AlgorithmSpec())
        self.learner, _ = await asyncio.gather(LearnerGroup.start(learner, [seats.rank(0)]), self.fleet.start(at_start))
        self.sync = WeightSync(self.learner)
        self.fleet.connect(self.sync, self.learner.logprobs)

    async def sample(self, tasks: list[Task]) -> list[Group]:
        requests = [GroupRequest(task, 0, i, 8, "train", 1.0) for i, task in enumerate(tasks)]
        return list(await asyncio.gather(*(self.fleet.sample(request) for request in requests)))

    async def learn(self, version: int) -> None:
        sequences = [
            TrainSequence(r.token_ids, r.loss_mask, r.logprobs, r.versions, float(advantage))
            for group in await self.sample(self.tasks)
            for r, advantage in zip(group.rollouts, advantages("centred", group.rewards), strict=True)
        ]
        assert (await self.learner.step(sequences, version)).applied

    async def versions(self) -> list[int]:
        return [stats["version"] for stats in await self.fleet.stats()]

    async def close(self) -> None:
        await self.fleet.shutdown()
        await self.learner.shutdown()
        self.seats.release()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(nodes: Cluster, job: JobSpec) -> AsyncIterator[Run]:
    """A job for which a node is missing, started when that has joined."""
    made, news = Run(job), list[str]()
    assert made.plan.lacking[0].message.startswith("the job wants 3 cores (engines 2 x 1, learner ranks 1 x 1)")
    waiting = asyncio.create_task(made.seats.ready(news.append, wait_for_nodes_s=60))
    await until(lambda: bool(news), within_s=20)
    assert news == [
        "waiting for resources: 2 cores, 0 GPUs are wanted, 1 cores, 0 GPUs are free; without a place: learner rank 0"
    ]
    nodes.add_node(num_cpus=1)
    at_start = await asyncio.wait_for(waiting, 30)
    assert at_start == [0]
    await made.start(at_start)
    yield made
    await made.close()


def node_of(actor: Any) -> str:
    (found,) = [state for state in ray._private.state.actors().values() if state["ActorID"] == actor._actor_id.hex()]
    return str(found["Address"]["NodeID"])


async def test_engine_and_learner_are_on_different_nodes_and_weights_cross(run: Run) -> None:
    engine, rank = node_of(run.workers[0]), node_of(run.learner._actors[0])
    assert engine != rank
    await run.learn(version=0)
    report = await run.fleet.publish(1)
    assert (report.version, report.fenced) == (1, ())
    assert 0 < report.canary_gap < 1e-3
    assert run.sync.last is not None
    buckets = [bucket for bucket, _ in run.sync.last.buckets]
    for where in get_object_locations(buckets).values():
        assert {engine, rank} <= set(where["node_ids"])  # the engine's own node has a copy, and lays it into its memory


async def test_an_engine_joins_in_mid_run_with_the_weights_of_then(run: Run, nodes: Cluster) -> None:
    assert run.events == ["engine-1 has no place in the cluster yet; it joins when there is one"]
    nodes.add_node(num_cpus=1)
    async with asyncio.timeout(180):
        await run.fleet.all_ready()
    assert await run.versions() == [1, 1]
    assert run.events[-1] == "engine-1 is there, with the weights of now"
    assert node_of(run.workers[1]) not in {node_of(run.workers[0]), node_of(run.learner._actors[0])}
    await run.learn(version=1)
    report = await run.fleet.publish(2)
    assert report.fenced == ()
    assert report.canary_gap < 1e-3


async def test_a_node_dies_and_its_engine_is_replaced_elsewhere(run: Run, nodes: Cluster) -> None:
    lost = run.workers[1]
    (dying,) = [node for node in nodes.worker_nodes if node.node_id == node_of(lost)]
    nodes.add_node(num_cpus=1)
    running = asyncio.create_task(run.sample(run.tasks * 4))
    await asyncio.sleep(1)  # rollouts are under way on both
    nodes.remove_node(dying, allow_graceful=False)
    groups = await running
    assert all(len(group.rollouts) == 8 for group in groups)
    async with asyncio.timeout(180):
        await run.fleet.all_ready()
    assert await run.versions() == [2, 2]
    assert node_of(run.workers[1]) != dying.node_id
    assert any(text.startswith("engine-1 is being replaced") for text in run.events)
