"""The actor of a shared engine, without Ray and with an engine that only notes what it is told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.shared.shared_engine import IDLE_TICKS, LEASE_TICKS, SharedEngine
from agent_rft.actors.engine.vllm_engine import Completion, Engine
from agent_rft.errors import EngineFailed
from agent_rft.trainer.learner.adapter import AdapterConfig

LORA = AdapterConfig(8, 16.0)
CONFIG = EngineConfig("base", "float32", context_length=64, max_num_seqs=4, seed=0, lora=LORA, adapter_slots=3)


class FakeEngine(Engine):
    """Holds tenants, and samples a token for each."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.starts = 0
        self.died = False
        self.may_start = asyncio.Event()
        self.may_start.set()

    async def start(self) -> None:
        self.starts += 1
        await self.may_start.wait()

    async def add_tenant(self, job: str, lora: AdapterConfig, adapter: Path | None) -> None:
        await super().add_tenant(job, lora, None)
        if adapter is not None:
            raise EngineFailed("it is damaged")

    async def generate(self, prompt: Any, *, job: str = "", **options: Any) -> Completion:
        self._tenant(job)
        self._alive()
        return Completion([7], np.zeros(1, np.float32), np.zeros(1, np.int32), stopped=True, model_s=0.0)

    async def check_health(self) -> None:
        self._alive()

    def _alive(self) -> None:
        if self.died:
            raise EngineFailed("died: the log quotes the row of another job", public_message="an engine died")

    @property
    def async_llm_client(self) -> Any:
        return SimpleNamespace(errored=self.died)

    @property
    def jobs(self) -> list[str]:
        return [job for job in self._tenants if job]


class World:
    def __init__(self, engine: FakeEngine | None = None) -> None:
        self.engine = engine or FakeEngine()
        self.ended: list[int] = []
        self.actor = SharedEngine(CONFIG, tick_s=0.0, engine=self.engine, end_process=self.ended.append)

    async def call(self, method: str, *arguments: Any) -> Any:
        return await self.actor.call(method, arguments)


async def ticks(count: int) -> None:
    """Let the actor tick at least as often: a tick takes a few turns of the event loop."""
    for _ in range(8 * count):
        await asyncio.sleep(0)


async def test_it_loads_the_model_once_for_all_jobs_and_no_lease_runs_out_meanwhile() -> None:
    world = World()
    world.engine.may_start.clear()
    starting = [asyncio.create_task(world.actor.start()) for _ in range(3)]
    await ticks(2 * IDLE_TICKS)
    assert world.ended == []
    world.engine.may_start.set()
    assert await asyncio.gather(*starting) == [None, None, None]
    assert world.engine.starts == 1


async def test_it_takes_as_many_jobs_as_there_are_slots_but_one() -> None:
    world = World()
    await world.actor.start()
    assert [await world.actor.add_tenant(job, LORA, None) for job in ("a", "b", "c")] == [True, True, False]
    await world.actor.remove_tenant("a")
    assert await world.actor.add_tenant("c", LORA, None)
    assert world.engine.jobs == ["b", "c"]


async def test_a_job_that_is_silent_loses_its_line_and_the_last_one_ends_the_engine() -> None:
    world = World()
    await world.actor.start()
    await world.actor.add_tenant("a", LORA, None)
    await world.actor.add_tenant("b", LORA, None)
    for _ in range(3 * LEASE_TICKS):
        await world.call("renew", "a")
        await ticks(1)
    assert world.engine.jobs == ["a"]
    assert (await world.call("generate", "a", [1], {}))[0] == [7]
    refused = await world.call("generate", "b", [1], {})
    assert isinstance(refused, EngineFailed) and "did not renew its lease" in refused.message
    await ticks(3 * (LEASE_TICKS + IDLE_TICKS))
    assert world.engine.jobs == [] and world.ended == [0]


async def test_a_first_adapter_that_is_damaged_takes_no_place() -> None:
    world = World()
    await world.actor.start()
    for _ in range(4):
        assert isinstance(await world.actor.add_tenant("a", LORA, Path("damaged")), EngineFailed)
    assert world.engine.jobs == []


async def test_why_the_engine_died_is_told_to_no_job_and_it_ends_for_another_to_be_started() -> None:
    world = World()
    await world.actor.start()
    await world.actor.add_tenant("a", LORA, None)
    world.engine.died = True
    failed = await world.call("generate", "a", [1], {})
    assert isinstance(failed, EngineFailed) and failed.message == "an engine died"
    await world.actor.start()
    assert world.ended


async def test_an_engine_that_cannot_start_ends() -> None:
    class Broken(FakeEngine):
        async def start(self) -> None:
            raise EngineFailed("no memory")

    world = World(Broken())
    error = await world.actor.start()
    assert error is not None and "no memory" in error.message
    await ticks(3)
    assert world.ended == [0]
