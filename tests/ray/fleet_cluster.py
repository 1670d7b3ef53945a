"""Two real engines and two learner ranks on a local Ray, as a driver holds them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import ray

from actors.dispatcher_actor import start_dispatchers
from actors.engine import EngineConfig
from actors.episode import EpisodeSpec
from actors.fleet import CANARY_LIMITS, Fleet
from actors.grader_pool import GraderPoolActor
from actors.learner import LearnerConfig
from actors.learner_group import LearnerGroup
from actors.rollout_worker import RolloutWorker, WorkerConfig
from actors.weight_sync import Published, WeightSync
from examples.ledger.services import services
from tests.fakes import tasks_of
from tests.fakes_http import LOCAL
from tests.shared_memory import left_behind
from trainer.advantage import advantages
from trainer.jobfile import load_job
from trainer.spec import AlgorithmSpec, JobSpec
from trainer.types import Group, GroupRequest, Task, TrainSequence

CLUSTER_MARKS = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

LEDGER = Path(__file__).parents[2] / "examples" / "ledger"
TEMPERATURE = 0.8


class ForgetfulSync(WeightSync):
    """Leaves the first bucket out for the first engine, once it is told to."""

    forget = False

    async def deliver(self, published: Published, workers: Any) -> Any:
        if not self.forget:
            return await super().deliver(published, workers)
        self.forget = False
        short = replace(published, buckets=published.buckets[1:])
        return [*await super().deliver(short, workers[:1]), *await super().deliver(published, workers[1:])]


@pytest.fixture(scope="module")
def job() -> Iterator[JobSpec]:
    with services() as environment:
        yield load_job(LEDGER / "job.yaml", environment)


class Cluster:
    """What a driver holds."""

    def __init__(self, job: JobSpec) -> None:
        reinforcement = job.reinforcement
        self.events: list[str] = []
        graders: Any = GraderPoolActor
        self.dispatchers = start_dispatchers(reinforcement.tools, LOCAL, 1)
        config = WorkerConfig(
            EngineConfig(job.model, "float32", context_length=1024, max_num_seqs=32, seed=0),
            EpisodeSpec("7", reinforcement.limits, reinforcement.reward, reinforcement.max_episode_steps, 1024),
            "hermes",
            {},
            self.dispatchers,
            graders.remote(reinforcement, LOCAL),
        )
        worker = ray.remote(RolloutWorker).options(num_cpus=1, max_concurrency=1000)
        self.fleet = Fleet(
            lambda _: worker.remote(config),
            2,
            CANARY_LIMITS["float32"],
            reinforcement.limits,
            lambda level, text: self.events.append(text),
        )
        self.learner: LearnerGroup
        self.sync: ForgetfulSync

    async def start(self, job: JobSpec) -> None:
        config = LearnerConfig(
            model=Path(job.model), steps=10, learning_rate=1e-2, algorithm=AlgorithmSpec(temperature=TEMPERATURE)
        )
        self.learner, _ = await asyncio.gather(
            LearnerGroup.start(config, [{"num_cpus": 1}, {"num_cpus": 1}]), self.fleet.start()
        )
        self.sync = ForgetfulSync(self.learner, max_bucket_bytes=400_000)
        self.fleet.connect(self.sync, self.learner.logprobs)

    async def sample(self, tasks: list[Task], size: int = 8) -> list[Group]:
        requests = [GroupRequest(task, 0, i, size, "train", TEMPERATURE) for i, task in enumerate(tasks)]
        return list(await asyncio.gather(*(self.fleet.sample(request) for request in requests)))

    async def learn(self, groups: list[Group], version: int) -> None:
        sequences = [
            TrainSequence(r.token_ids, r.loss_mask, r.logprobs, r.versions, float(advantage))
            for group in groups
            for r, advantage in zip(group.rollouts, advantages("centred", group.rewards), strict=True)
        ]
        report = await self.learner.step(sequences, version)
        assert report.applied
        assert report.metrics["logprob_gap"] < 1e-3
        assert report.metrics["logprob_gap_ratio"] == pytest.approx(1.0, abs=0.02)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(job: JobSpec) -> AsyncIterator[Cluster]:
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        made = Cluster(job)
        await made.start(job)
        yield made
        await made.fleet.shutdown()
        await made.learner.shutdown()
    finally:
        ray.shutdown()
    assert left_behind() == set()


@pytest.fixture(scope="module")
def tasks(job: JobSpec) -> list[Task]:
    return tasks_of(Path(job.training_file))[:12]


def processes(name: str) -> list[psutil.Process]:
    """Ours that run under this name."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended; Ray takes a moment to notice
            if name in " ".join(process.cmdline()):
                found.append(process)
    return found


def freeze(name: str) -> psutil.Process:
    """Stop one of our processes as SIGSTOP does: it is there, and does nothing any more."""
    found = processes(name)[0]
    found.send_signal(signal.SIGSTOP)
    return found


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
