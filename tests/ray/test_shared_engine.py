"""One real engine that several jobs share on a local Ray: each has its own adapter, and none notices another's end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import ray
import torch

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.shared.shared_engine import NAMESPACE, SharedConfig
from agent_rft.actors.engine.shared.shared_engine_client import EngineClient
from agent_rft.actors.engine.vllm_engine import Completion
from agent_rft.errors import EngineFailed
from agent_rft.spec.job import JobSpec
from agent_rft.spec.job_file import load_job
from agent_rft.trainer.learner.adapter import AdapterConfig
from agent_rft.trainer.learner.checkpoint_weights import concat_bytes
from examples.ledger.services import services
from tests.ray.job_actors import MARKS, JobActors
from tests.support.adapters import ALPHA, RANK, adapted, tensors_of
from tests.support.builders import tasks_of
from tests.support.fakes_http import until
from tests.support.paths import LEDGER
from tests.support.shared_memory import left_behind

pytestmark = MARKS

CORE = {"num_cpus": 1}
PROMPT = list(b"what was revenue of vorzen in 2015?" * 4)
TICK_S = 0.75
"""A lease ends after twelve ticks: models are loaded before, and compute in threads, so that it is renewed."""
NUM_JOBS = 3


@pytest.fixture(scope="module")
def job() -> Iterator[JobSpec]:
    with services() as environment:
        yield load_job(LEDGER / "job.yaml", environment)


@pytest.fixture(scope="module")
def shared(job: JobSpec) -> SharedConfig:
    own = EngineConfig(job.model, "float32", context_length=1024, max_num_seqs=32, seed=0)
    config = SharedConfig.for_job(own, AdapterConfig(RANK, ALPHA), cores=1, index=0)
    return replace(config, engine=replace(config.engine, adapter_slots=NUM_JOBS + 1), tick_s=TICK_S)


@pytest.fixture(scope="module")
def models(job: JobSpec) -> dict[str, Any]:
    """The learners' models, each with its adapter; one of them has diverged."""
    made = {name: adapted(Path(job.model), seed) for seed, name in enumerate(("first", "second", "diverged"))}
    with torch.no_grad():
        for name, parameter in made["diverged"].named_parameters():
            if "lora_B" in name:
                parameter.fill_(float("inf"))
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(shared: SharedConfig, models: dict[str, Any]) -> AsyncIterator[list[EngineClient]]:
    """Two jobs that started at once."""
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        made = [EngineClient(shared), EngineClient(shared)]
        await asyncio.gather(*(client.start() for client in made))
        yield made
    finally:
        ray.shutdown()
    assert left_behind() == set()


@ray.remote
class Job:
    """A process with a client, to be killed."""

    async def start(self, shared: SharedConfig) -> None:
        self._client = EngineClient(shared)
        await self._client.start()


async def publish(client: EngineClient, peft: Any, version: int) -> None:
    named = tensors_of(peft)
    layout = [(name, "float32", tuple(tensor.shape)) for name, tensor in named.items()]
    await asyncio.to_thread(client.stage_bucket, concat_bytes(list(named.values())), layout)
    await client.load_staged(version)


def logprobs_of(peft: Any, token_ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        logits = peft(torch.tensor([token_ids])).logits[0, :-1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(token_ids)[1:, None])[:, 0].numpy()


async def sample(client: EngineClient, seed: int) -> Completion:
    return await client.generate(PROMPT, max_tokens=24, seed=seed, temperature=1.0)


async def gap(peft: Any, *completions: Completion) -> float:
    """The largest difference to the learner's log-probabilities."""

    def largest() -> float:
        learner = [logprobs_of(peft, PROMPT + completion.token_ids)[len(PROMPT) - 1 :] for completion in completions]
        return max(float(np.abs(a - c.logprobs).max()) for a, c in zip(learner, completions, strict=True))

    return await asyncio.to_thread(largest)


async def test_each_job_samples_with_its_own_adapter_and_versions(
    clients: list[EngineClient], models: dict[str, Any]
) -> None:
    own = [models["first"], models["second"]]
    base = await asyncio.gather(*(client.score_prompt(PROMPT) for client in clients))
    assert base[0].logprobs == pytest.approx(base[1].logprobs, abs=1e-5)
    await asyncio.gather(publish(clients[0], own[0], 1), publish(clients[1], own[1], 7))
    every = [(i, seed) for seed in range(16) for i in (0, 1)]
    completions = await asyncio.gather(*(sample(clients[i], seed) for i, seed in every))
    for number, client in enumerate(clients):
        mine = [c for (i, _), c in zip(every, completions, strict=True) if i == number]
        assert {version for c in mine for version in c.versions.tolist()} == {(1, 7)[number]}
        assert await gap(own[number], *mine) < 1e-4
        assert client.sampled_tokens == sum(len(c.token_ids) for c in mine)
    canaries = await asyncio.gather(*(client.score_prompt(PROMPT) for client in clients))
    for model, canary in zip(own, canaries, strict=True):
        assert canary.logprobs == pytest.approx(await asyncio.to_thread(logprobs_of, model, PROMPT), abs=1e-4)


async def test_an_adapter_of_one_job_that_is_damaged_or_infinite_hurts_no_other(
    clients: list[EngineClient], models: dict[str, Any]
) -> None:
    first, second = clients
    await publish(second, models["diverged"], 8)
    await asyncio.gather(*(sample(second, seed) for seed in range(8)), return_exceptions=True)
    data = np.zeros(8, np.uint8)
    await asyncio.to_thread(
        second.stage_bucket, data, [("base_model.model.model.nothing.lora_A.weight", "float32", (2,))]
    )
    with pytest.raises(EngineFailed):
        await second.load_staged(9)
    completions = await asyncio.gather(*(sample(first, seed) for seed in range(8)))
    assert await gap(models["first"], *completions) < 1e-4
    await publish(second, models["second"], 10)
    assert await gap(models["second"], await sample(second, 1)) < 1e-4


async def test_a_further_job_waits_until_one_has_left_or_has_been_killed(
    clients: list[EngineClient], shared: SharedConfig
) -> None:
    killed: Any = Job.remote()  # type: ignore[attr-defined] # Ray's decorator has no types
    await killed.start.remote(shared)
    with pytest.raises(EngineFailed, match="has been full for"):
        await EngineClient(shared, wait_s=0.0).start()
    ray.kill(killed)
    further = EngineClient(shared)
    await further.start()
    assert (await sample(further, 1)).versions[0] == 0
    await further.end_lease()
    with pytest.raises(EngineFailed, match="did not renew its lease"):
        await sample(further, 1)


@pytest.mark.nightly
async def test_two_jobs_train_adapters_at_once_on_the_same_engine(
    clients: list[EngineClient], shared: SharedConfig, job: JobSpec
) -> None:
    await clients.pop().end_lease()
    jobs = [JobActors(job, lambda index: {"num_cpus": 0}, shared=shared) for _ in range(2)]
    await asyncio.gather(*(one.start([CORE]) for one in jobs))
    tasks = tasks_of(Path(job.training_file))[:3]

    async def train(actors: JobActors, steps: int) -> None:
        for step in range(steps):
            await actors.learn(await actors.sample(tasks), version=step)
            report = await actors.fleet.publish(step + 1)
            assert (report.fenced, report.version) == ((), step + 1)
            assert report.canary_gap < 1e-3
            assert report.num_bytes < 200_000

    await asyncio.gather(train(jobs[0], 1), train(jobs[1], 2))
    assert [await one.versions() for one in jobs] == [[1], [2]]
    await asyncio.gather(*(one.close() for one in jobs))


async def test_the_engine_ends_after_its_last_job(clients: list[EngineClient], shared: SharedConfig) -> None:
    await asyncio.gather(*(client.end_lease() for client in clients))

    def is_gone() -> bool:
        try:
            ray.get_actor(shared.name, NAMESPACE)
        except ValueError:
            return True
        return False

    await until(is_gone, within_s=60)
    await until(lambda: ray.available_resources().get("CPU") == 4.0, within_s=30)
