"""A learner rank is killed while a run trains: the others end, new ones catch up, and the weights are the same."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import ray
from numpy.typing import NDArray

from agent_rft.actors.learner.learner_group import LearnerGroup
from agent_rft.actors.weights.weight_sync import WeightsLost, WeightSync
from agent_rft.errors import LearnerFailed
from agent_rft.events import LearnerRestarted
from agent_rft.spec.job import AlgorithmSpec, CheckpointInterval
from agent_rft.trainer.learner.rank_config import LearnerConfig
from agent_rft.trainer.learner.weight_buckets import BucketLayout, WeightLoadResult, num_bytes
from agent_rft.trainer.loop.checkpoint import Checkpoints
from agent_rft.trainer.loop.journal import Journal
from agent_rft.trainer.loop.reinforcement import LoopConfig, ReinforcementLoop
from agent_rft.types import Group, GroupRequest, SyncReport
from tests.support.builders import plan, task
from tests.support.fakes import FakeRollouts, FakeSink
from tests.support.processes import our_processes
from tests.support.recorded_run import recorded
from tests.support.tiny_model import write_tiny_model

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # Warnings of Ray at its start, and about its open sockets at its end.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
]
STEPS = 5


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
    gc.collect()  # Ray's process handles warn when they are collected: here the warnings are expected


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> LearnerConfig:
    model = write_tiny_model(tmp_path_factory.mktemp("model") / "model")
    return LearnerConfig(model=model, steps=STEPS, learning_rate=1e-3, zero_stage=2, micro_batch_tokens=512)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def learner(config: LearnerConfig) -> AsyncIterator[LearnerGroup]:
    group = await LearnerGroup.start(config, [{"num_cpus": 1}] * 2)
    yield group
    await group.shutdown()


class Recorded(FakeRollouts):
    """Rollouts by the group's number; kills a rank before the update or the publication of a version."""

    def __init__(self, learner: LearnerGroup, kill_at: int | None = None) -> None:
        super().__init__()
        self._learner = learner
        self._kill_at = kill_at
        self.weights: dict[int, str] = {}

    async def sample(self, request: GroupRequest) -> Group:
        await super().sample(request)
        return recorded(request)

    async def publish(self, version: int) -> SyncReport:
        if version == self._kill_at:
            self._kill_at = None
            victim = our_processes("RankProcess")[version % 2]
            victim.send_signal(signal.SIGKILL)
            victim.wait()
        digest = hashlib.blake2b(digest_size=16)
        for index, _ in enumerate(await self._learner.bucket_layouts(1 << 20)):
            reference, _ = await self._learner.publish_bucket(index)
            bucket: np.ndarray[tuple[int], np.dtype[np.uint8]] = await reference
            digest.update(bucket.tobytes())
        assert self.weights.setdefault(version, digest.hexdigest()) == digest.hexdigest(), "a replay differs"
        return await super().publish(version)


async def trained(folder: Path, learner: LearnerGroup, kill_at: int | None = None) -> tuple[Recorded, FakeSink]:
    sink, rollouts = FakeSink(), Recorded(learner, kill_at)
    config = LoopConfig(
        plan(num_rows=8, batch_size=2, n_epochs=2, steps=STEPS, eval_interval=STEPS),
        AlgorithmSpec(max_staleness=1),
        seed=3,
        pass_threshold=1.0,
        checkpoint_interval=CheckpointInterval(minutes=None, steps=2),
    )
    tasks = [task(str(i)) for i in range(8)]
    checkpoints, journal = Checkpoints(folder / "checkpoints"), Journal(folder / "journal")
    loop = ReinforcementLoop(
        config, tasks, [], rollouts, learner, checkpoints, journal, sink, sleep=lambda _: asyncio.sleep(0)
    )
    await loop.run()
    return rollouts, sink


async def test_a_killed_rank_changes_no_bit_of_the_weights(
    tmp_path: Path, learner: LearnerGroup, config: LearnerConfig
) -> None:
    killed, sink = await trained(tmp_path / "killed", learner, kill_at=3)
    await learner.build(config)
    calm, _ = await trained(tmp_path / "calm", learner)
    assert killed.weights == calm.weights
    assert calm.weights.keys() == set(range(1, STEPS + 1))
    assert killed.published == sorted(killed.published), "a version went backwards"
    assert [type(event) for event in sink.of(LearnerRestarted)] == [LearnerRestarted]
    assert all("process was lost" in event.cause for event in sink.of(LearnerRestarted))
    indexes = [request.index for _, request in killed.requests]
    assert len(set(indexes)) == len(indexes), "a finished group was sampled again"


@ray.remote
class Worker:
    """An engine's actor as weight sync sees it."""

    def stage_bucket(self, data: NDArray[np.uint8], layout: BucketLayout) -> None:
        assert len(data) == num_bytes(layout)

    def load_staged(self, version: int) -> WeightLoadResult:
        return WeightLoadResult(0.0, ())


async def test_a_rank_that_is_lost_while_only_a_checkpoint_is_written_is_lost_for_all(
    tmp_path: Path, learner: LearnerGroup
) -> None:
    """For each later call, and for engines that would start with what it had published."""
    worker: Any = Worker.remote()
    sync = WeightSync(learner)
    published = await sync.collect(1)
    assert await sync.load_into(published, worker) == 0.0
    await learner.snapshot()
    our_processes("RankProcess")[0].kill()
    for call in (learner.write_snapshot(tmp_path), learner.snapshot(), learner.check_alive()):
        with pytest.raises(LearnerFailed, match="failed in write"):
            await call
    with pytest.raises(WeightsLost, match="version 1 were lost with learner rank 0"):
        async with asyncio.timeout(30):
            while True:  # Ray takes a moment to notice that the owner of the buckets is gone
                await sync.load_into(published, worker)
    assert sync.is_lost
