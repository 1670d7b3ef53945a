"""A job's real engines, helpers and learner ranks on a local Ray, as in a driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.shared.shared_engine import SharedConfig
from agent_rft.actors.grading.grader_pool import GraderPoolActor
from agent_rft.actors.learner.learner_group import LearnerGroup
from agent_rft.actors.rollout.canary import CANARY_LIMITS
from agent_rft.actors.rollout.engine_assignment import GroupAffinity
from agent_rft.actors.rollout.episode import EpisodeSpec
from agent_rft.actors.rollout.fleet import Fleet
from agent_rft.actors.rollout.rollout_worker import RolloutWorker, WorkerConfig
from agent_rft.actors.tools.dispatcher_actor import start_dispatchers
from agent_rft.actors.weights.weight_sync import WeightSync
from agent_rft.chat.dialect import DEFAULT_DIALECT
from agent_rft.events import Event
from agent_rft.spec.job import AlgorithmSpec, JobSpec
from agent_rft.spec.model_options import LoraSpec
from agent_rft.trainer.algorithm.advantage import compute_advantages
from agent_rft.trainer.learner.rank_config import LearnerConfig
from agent_rft.types import Group, Task
from tests.support.builders import group_request
from tests.support.fakes_http import LOCAL

MARKS = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]
TEMPERATURE = 0.8
MAX_BUCKET_BYTES = 400_000
"""Small enough to split the base model into several buckets."""


class JobActors:
    """Two engines, a dispatcher, a grader pool and learner ranks; or a shared engine, and a learner of an adapter.

    `engine_options` returns Ray's options of the engine with an index, `beside` those of a helper with a name and an
    index.
    """

    def __init__(
        self,
        job: JobSpec,
        engine_options: Callable[[int], dict[str, Any]],
        beside: Callable[..., dict[str, Any]] = lambda name, index=0: {},
        shared: SharedConfig | None = None,
        **fleet_options: Any,
    ) -> None:
        reinforcement = job.reinforcement
        graders: Any = GraderPoolActor
        self.events: list[Event] = []
        self.workers: dict[int, Any] = {}
        self.dispatchers = start_dispatchers(reinforcement.tools, LOCAL, 1, get_options=beside)
        config = WorkerConfig(
            EngineConfig(job.model, "float32", context_length=1024, max_num_seqs=32, seed=0),
            EpisodeSpec("7", reinforcement.limits, reinforcement.reward, reinforcement.max_episode_steps, 1024),
            DEFAULT_DIALECT,
            self.dispatchers,
            graders.options(**beside("grader-pool")).remote(reinforcement, LOCAL),
            shared=shared,
        )
        worker = ray.remote(RolloutWorker)

        def spawn(index: int) -> Any:
            self.workers[index] = worker.options(max_concurrency=1000, **engine_options(index)).remote(config)
            return self.workers[index]

        self.fleet = Fleet(
            spawn,
            2 if shared is None else 1,
            GroupAffinity(max_num_seqs=32),
            CANARY_LIMITS["float32"],
            reinforcement.limits,
            self.events.append,
            **fleet_options,
        )
        self.learner: LearnerGroup
        self.sync: Any
        self._model = Path(job.model)
        self._lora = None if shared is None else LoraSpec(rank=shared.lora.rank, alpha=shared.lora.alpha)

    async def start(
        self,
        rank_options: Sequence[dict[str, Any]],
        at_start: Sequence[int] | None = None,
        sync: type[WeightSync] = WeightSync,
    ) -> None:
        algorithm = AlgorithmSpec(temperature=TEMPERATURE)
        config = LearnerConfig(self._model, steps=10, learning_rate=1e-2, algorithm=algorithm, lora=self._lora)
        self.learner, _ = await asyncio.gather(LearnerGroup.start(config, rank_options), self.fleet.start(at_start))
        self.sync = sync(self.learner, max_bucket_bytes=MAX_BUCKET_BYTES)
        self.fleet.connect(self.sync, self.learner.logprobs)

    async def sample(self, tasks: Sequence[Task], size: int = 8) -> list[Group]:
        requests = [group_request(i, size, task=task, temperature=TEMPERATURE) for i, task in enumerate(tasks)]
        return list(await asyncio.gather(*(self.fleet.sample(request) for request in requests)))

    async def learn(self, groups: Sequence[Group], version: int) -> None:
        sequences = [
            sequence
            for group in groups
            for rollout, advantage in zip(group.rollouts, compute_advantages("centered", group.rewards), strict=True)
            for sequence in rollout.to_train_segments(float(advantage))
        ]
        report = await self.learner.step(sequences, version)
        assert report.applied
        assert report.metrics["logprob_gap"] < 1e-3
        assert report.metrics["importance_ratio_same_version"] == pytest.approx(1.0, abs=0.02)

    async def versions(self) -> list[int]:
        return [stats["version"] for stats in await self.fleet.engine_stats()]

    async def close(self) -> None:
        await self.fleet.shutdown()
        await self.learner.shutdown()
