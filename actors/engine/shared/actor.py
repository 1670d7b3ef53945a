"""An engine that several jobs share, each with its own adapters: an actor of the cluster, not of a job.

The first job that needs it makes it, and later ones find it by its name, which stands for all that must be equal. It
ends by itself when no job has held a lease for a minute. A job's name is known to its own processes only.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import ray
from numpy.typing import NDArray

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.sizes import SHARED_ADAPTERS, slot_rank
from agent_rft.actors.engine.vllm_engine import Engine
from agent_rft.actors.runtime.calls import LOST, UNREACHABLE, ask, outcome_of
from agent_rft.actors.runtime.channel import Reachable
from agent_rft.actors.runtime.process import end_process
from agent_rft.errors import EngineFailed, RftError
from agent_rft.rows.rollout_json import experts_as_json
from agent_rft.trainer.learner.adapter import AdapterConfig, AdapterFolder
from agent_rft.trainer.learner.layout import Layout, Loaded

TICK_S = 5.0
LEASE_TICKS = 12
"""Ticks for which a job may be silent: a minute."""
IDLE_TICKS = 12
"""Ticks for which an engine stays without a job: a minute."""
START_TICKS = 72
"""Ticks for which an engine stays for a job that waits for the rest of its resources: six minutes."""


class Leases:
    """The leases of at most `most` jobs at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left: dict[str, int] = {}
        self._idle_left = IDLE_TICKS

    def take(self, job: str) -> bool:
        """Whether there was one left for this job."""
        if len(self._left) >= self._most:
            return False
        self._left[job] = LEASE_TICKS
        self._idle_left = IDLE_TICKS
        return True

    def renew(self, job: str) -> None:
        """Let a lease begin again, unless it has ended."""
        if job in self._left:
            self._left[job] = LEASE_TICKS

    def end(self, job: str) -> bool:
        """Give a lease up; whether there was one."""
        self.keep(IDLE_TICKS)
        return self._left.pop(job, None) is not None

    def keep(self, ticks: int) -> None:
        """Stay at least as long without a job, until the next one comes."""
        self._idle_left = max(self._idle_left, ticks)

    def tick(self) -> list[str]:
        """The jobs whose leases have run out now."""
        if not self._left:
            self._idle_left -= 1
        self._left = {job: left - 1 for job, left in self._left.items()}
        late = [job for job, left in self._left.items() if left <= 0]
        for job in late:
            self.end(job)
        return late

    @property
    def are_over(self) -> bool:
        """Whether the engine may end."""
        return not self._left and self._idle_left <= 0


T = TypeVar("T")

NAMESPACE = "agent-rft"
TRIES = 4
HUNG_S = 180.0
"""An engine whose core does not answer for this long ends, so that its jobs start another."""


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """A shared engine by its name, and what a job brings to it: the shape of its adapters, and perhaps a first one."""

    name: str
    engine: EngineConfig
    cores: int
    lora: AdapterConfig
    adapter: Path | None = None
    tick_s: float = TICK_S

    @classmethod
    def of(cls, own: EngineConfig, lora: AdapterConfig, cores: int, index: int) -> SharedConfig:
        """The shared engine number `index` for a job that alone would have the engine `own`.

        Raises:
            UserError: The job's model is an adapter of a kind that is not supported.
        """
        adapter = AdapterFolder.read(Path(own.model))
        base = Path(own.model) if adapter is None else adapter.base
        slots = AdapterConfig(slot_rank(lora.rank), 1.0)
        engine = replace(own, model=str(base), seed=0, log_stats=False, lora=slots, adapter_slots=SHARED_ADAPTERS)
        files = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in base.glob("*"))
        digest = hashlib.blake2b(repr((engine, cores, files)).encode(), digest_size=6).hexdigest()
        name = f"engine-{digest}-{index}"
        return cls(name, engine, cores, lora, None if adapter is None else adapter.path)

    def actor(self) -> Any:
        """The engine's actor, which is made if there is none; it may still wait for its resources."""
        options = {
            "name": self.name,
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "get_if_exists": True,
            "num_cpus": self.cores,
            "num_gpus": self.engine.gpus,
            "max_concurrency": 10_000,
            "scheduling_strategy": "DEFAULT",
        }
        return ray.remote(SharedEngine).options(**options).remote(self.engine, self.tick_s)

    async def reserved(self) -> Any:
        """The actor, once it has its resources."""
        return await unless_it_ends(self._reserved, self.tick_s)

    async def _reserved(self) -> Any:
        actor = self.actor()
        await ask(actor.reserve.remote(), self.name, EngineFailed)
        return actor


async def unless_it_ends(work: Callable[[], Awaitable[T]], pause_s: float) -> T:
    """Do `work` again if the engine has ended meanwhile: one that ends is found by its name for a moment."""
    for _ in range(TRIES):
        try:
            return await work()
        except EngineFailed as error:
            if error.details.get("kind") not in (LOST, UNREACHABLE):
                raise
        await asyncio.sleep(pause_s)
    return await work()


class SharedEngine(Reachable):
    """The actor. Methods return expected errors as values, and are for one job each."""

    def __init__(
        self,
        config: EngineConfig,
        tick_s: float = TICK_S,
        engine: Engine | None = None,
        end: Callable[[int], object] = end_process,
    ) -> None:
        """`engine` and `end` replace those of the process."""
        self._engine = engine or Engine(config)
        self._end = end
        self._leases = Leases(config.adapter_slots - 1)
        self._tick_s = tick_s
        self._starting: asyncio.Future[None] | None = None
        self._serve_methods({"generate": self._generate, "renew": self._renew})
        self._living = asyncio.get_running_loop().create_task(self._live())

    async def reserve(self) -> None:
        """Answer once there are resources, and stay until the caller has the others that it needs."""
        self._leases.keep(START_TICKS)

    async def start(self) -> RftError | None:
        """Load the model; a later job waits for the first one's call."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._engine.start())
        error = await outcome_of(asyncio.shield(self._starting))
        if error is None and not await self._is_well():
            self._end_now()  # the caller makes another
        return error

    async def take(self, job: str, lora: AdapterConfig, adapter: Path | None) -> bool | RftError:
        """Begin a job's line, unless the engine serves as many jobs as it has slots for."""
        if not self._leases.take(job):
            return False
        error = await outcome_of(self._engine.open(job, lora, adapter))
        if error is not None:
            await self.end(job)
        return error or True

    async def end(self, job: str) -> None:
        """End a job's line."""
        if self._leases.end(job):
            self._engine.close(job)

    async def stage(self, job: str, data: NDArray[np.uint8], layout: Layout) -> RftError | None:
        return await self._outcome(asyncio.to_thread(self._engine.stage, data, layout, job))

    async def swap(self, job: str, version: int) -> Loaded | RftError:
        return await self._outcome(self._engine.swap(version, job))

    async def prompt_logprobs(self, job: str, token_ids: Sequence[int]) -> NDArray[np.float32] | RftError:
        return await self._outcome(self._engine.prompt_logprobs(token_ids, job))

    async def pulse(self) -> RftError | None:
        """Answer while the engine's own processes answer."""
        return await self._outcome(self._engine.check_health())

    async def _generate(self, job: str, prompt: list[int], options: Mapping[str, Any]) -> list[Any]:
        done = await self._outcome(self._engine.generate(prompt, job=job, **options))
        if isinstance(done, RftError):
            raise done
        arrays = done.logprobs.tolist(), done.versions.tolist()
        return [done.token_ids, *arrays, done.stopped, done.model_s, experts_as_json(done.experts)]

    async def _renew(self, job: str) -> dict[str, float]:
        self._leases.renew(job)
        return self._engine.live(job)

    async def _live(self) -> None:
        """End the lines of jobs that are gone; and end when there are none, or when vLLM has died."""
        while not self._leases.are_over:
            await asyncio.sleep(self._tick_s)
            if self._starting is not None and not self._starting.done():
                continue
            if self._starting is not None and (self._starting.exception() or not await self._is_well()):
                break
            for job in self._leases.tick():
                self._engine.close(job)
        self._end_now()

    def _end_now(self) -> None:
        self._engine.shutdown()
        self._end(0)

    async def _outcome(self, work: Awaitable[T]) -> T | RftError:
        """The result of a job's call, or its error; why vLLM died stays here, since another job may be named in it."""
        outcome = await outcome_of(work)
        if isinstance(outcome, EngineFailed) and self._engine.client.errored:
            return EngineFailed(outcome.public)
        return outcome

    async def _is_well(self) -> bool:
        try:
            async with asyncio.timeout(HUNG_S):
                await self._engine.check_health()
        except (EngineFailed, TimeoutError):
            return False
        return True
