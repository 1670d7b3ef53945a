"""The actor of an engine that several jobs share, each with separate adapters; it belongs to the cluster, not to a job.

The first job that needs the engine creates it. Later jobs find it by its name, which encodes everything that must be
equal. The engine ends when no job has held a lease for a minute. Only a job's own processes have its secret name.
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
from agent_rft.actors.engine.engine_memory import SHARED_ADAPTERS, slot_rank
from agent_rft.actors.engine.vllm_engine import Engine
from agent_rft.actors.runtime.actor_calls import LOST, UNREACHABLE, call_actor, return_errors
from agent_rft.actors.runtime.channel import ChannelActor
from agent_rft.actors.runtime.process_setup import end_process
from agent_rft.errors import EngineFailed, RftError
from agent_rft.rows.rollout_json import experts_to_json
from agent_rft.trainer.learner.adapter import AdapterConfig, AdapterFolder
from agent_rft.trainer.learner.weight_buckets import BucketLayout, LoadedWeights

TICK_S = 5.0
LEASE_TICKS = 12
"""Ticks after which the lease of a silent job ends: a minute."""
IDLE_TICKS = 12
"""Ticks for which an engine without a job stays: a minute."""
START_TICKS = 72
"""Ticks for which an engine stays for a job that waits for its other resources: six minutes."""


class Leases:
    """The leases of at most `max_jobs` jobs at a time."""

    def __init__(self, max_jobs: int) -> None:
        self._max_jobs = max_jobs
        self._ticks_left: dict[str, int] = {}
        self._idle_ticks_left = IDLE_TICKS

    def acquire(self, job: str) -> bool:
        """Grant a lease to this job; return False if all leases are taken."""
        if len(self._ticks_left) >= self._max_jobs:
            return False
        self._ticks_left[job] = LEASE_TICKS
        self._idle_ticks_left = IDLE_TICKS
        return True

    def renew(self, job: str) -> None:
        """Restart a lease's time, unless the lease has ended."""
        if job in self._ticks_left:
            self._ticks_left[job] = LEASE_TICKS

    def release(self, job: str) -> bool:
        """End a lease; return whether the job had one."""
        self.stay_for(IDLE_TICKS)
        return self._ticks_left.pop(job, None) is not None

    def stay_for(self, ticks: int) -> None:
        """Keep the engine for at least `ticks` without a job."""
        self._idle_ticks_left = max(self._idle_ticks_left, ticks)

    def tick(self) -> list[str]:
        """Count one tick, and return the jobs whose leases have expired."""
        if not self._ticks_left:
            self._idle_ticks_left -= 1
        self._ticks_left = {job: left - 1 for job, left in self._ticks_left.items()}
        late = [job for job, left in self._ticks_left.items() if left <= 0]
        for job in late:
            self.release(job)
        return late

    @property
    def should_end(self) -> bool:
        """Whether the engine may end."""
        return not self._ticks_left and self._idle_ticks_left <= 0


T = TypeVar("T")

NAMESPACE = "agent-rft"
MAX_ENGINE_TRIES = 4
HANG_TIMEOUT_S = 180.0
"""An engine whose core does not answer for this many seconds ends, so that its jobs start another one."""


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """Name and configuration of a shared engine, and the shape and first version of a job's adapters."""

    name: str
    engine: EngineConfig
    cores: int
    lora: AdapterConfig
    adapter: Path | None = None
    tick_s: float = TICK_S

    @classmethod
    def for_job(cls, own: EngineConfig, lora: AdapterConfig, cores: int, index: int) -> SharedConfig:
        """Return the shared engine with number `index` for a job whose dedicated engine would be `own`.

        Raises:
            UserError: The job's model is an adapter of an unsupported kind.
        """
        adapter = AdapterFolder.read(Path(own.model))
        base = Path(own.model) if adapter is None else adapter.base
        slots = AdapterConfig(slot_rank(lora.rank), 1.0)
        engine = replace(own, model=str(base), seed=0, log_stats=False, lora=slots, adapter_slots=SHARED_ADAPTERS)
        files = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in base.glob("*"))
        digest = hashlib.blake2b(repr((engine, cores, files)).encode(), digest_size=6).hexdigest()
        name = f"engine-{digest}-{index}"
        return cls(name, engine, cores, lora, None if adapter is None else adapter.path)

    def get_or_create_actor(self) -> Any:
        """Return the engine's actor, and create it if necessary; it may still wait for its resources."""
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

    async def reserve_actor(self) -> Any:
        """Return the actor once it has its resources."""
        return await retry_if_engine_ends(self._reserve_once, self.tick_s)

    async def _reserve_once(self) -> Any:
        actor = self.get_or_create_actor()
        await call_actor(actor.reserve.remote(), self.name, EngineFailed)
        return actor


async def retry_if_engine_ends(work: Callable[[], Awaitable[T]], pause_s: float) -> T:
    """Run `work`, and repeat it if the engine ended: an engine that ends can still be found by name for a moment."""
    for _ in range(MAX_ENGINE_TRIES):
        try:
            return await work()
        except EngineFailed as error:
            if error.details.get("kind") not in (LOST, UNREACHABLE):
                raise
        await asyncio.sleep(pause_s)
    return await work()


class SharedEngine(ChannelActor):
    """The actor of a shared engine. Methods act for one job each and return expected errors as values."""

    def __init__(
        self,
        config: EngineConfig,
        tick_s: float = TICK_S,
        engine: Engine | None = None,
        end_process: Callable[[int], object] = end_process,
    ) -> None:
        """Create the engine; `engine` and `end_process` are replacements for tests."""
        self._engine = engine or Engine(config)
        self._end_process = end_process
        self._leases = Leases(config.adapter_slots - 1)
        self._tick_s = tick_s
        self._starting: asyncio.Future[None] | None = None
        self._serve_methods({"generate": self._generate, "renew": self._renew})
        self._tick_task = asyncio.get_running_loop().create_task(self._tick_until_idle())

    async def reserve(self) -> None:
        """Return once the engine has resources, and stay alive until the caller has its other resources."""
        self._leases.stay_for(START_TICKS)

    async def start(self) -> RftError | None:
        """Load the model; later jobs wait for the first job's call."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._engine.start())
        error = await return_errors(asyncio.shield(self._starting))
        if error is None and not await self._is_healthy():
            self._shut_down()  # the caller starts another engine
        return error

    async def add_tenant(self, job: str, lora: AdapterConfig, adapter: Path | None) -> bool | RftError:
        """Add a tenant for a job; return False if the engine already serves as many jobs as it has slots for."""
        if not self._leases.acquire(job):
            return False
        error = await return_errors(self._engine.add_tenant(job, lora, adapter))
        if error is not None:
            await self.remove_tenant(job)
        return error or True

    async def remove_tenant(self, job: str) -> None:
        """Remove a job's tenant."""
        if self._leases.release(job):
            self._engine.remove_tenant(job)

    async def stage_bucket(self, job: str, data: NDArray[np.uint8], layout: BucketLayout) -> RftError | None:
        return await self._job_outcome(asyncio.to_thread(self._engine.stage_bucket, data, layout, job))

    async def load_staged(self, job: str, version: int) -> LoadedWeights | RftError:
        return await self._job_outcome(self._engine.load_staged(version, job))

    async def prompt_logprobs(self, job: str, token_ids: Sequence[int]) -> NDArray[np.float32] | RftError:
        return await self._job_outcome(self._engine.prompt_logprobs(token_ids, job))

    async def heartbeat(self) -> RftError | None:
        """Return once the engine's processes have answered."""
        return await self._job_outcome(self._engine.check_health())

    async def _generate(self, job: str, prompt: list[int], options: Mapping[str, Any]) -> list[Any]:
        done = await self._job_outcome(self._engine.generate(prompt, job=job, **options))
        if isinstance(done, RftError):
            raise done
        arrays = done.logprobs.tolist(), done.versions.tolist()
        return [done.token_ids, *arrays, done.stopped, done.model_s, experts_to_json(done.experts)]

    async def _renew(self, job: str) -> dict[str, float]:
        self._leases.renew(job)
        return self._engine.live_metrics(job)

    async def _tick_until_idle(self) -> None:
        """Remove tenants whose leases expired; end the engine when no tenant is left or vLLM has died."""
        while not self._leases.should_end:
            await asyncio.sleep(self._tick_s)
            if self._starting is not None and not self._starting.done():
                continue
            if self._starting is not None and (self._starting.exception() or not await self._is_healthy()):
                break
            for job in self._leases.tick():
                self._engine.remove_tenant(job)
        self._shut_down()

    def _shut_down(self) -> None:
        self._engine.shutdown()
        self._end_process(0)

    async def _job_outcome(self, work: Awaitable[T]) -> T | RftError:
        """Return a job's result or error, without the cause of vLLM's death, which may name another job."""
        outcome = await return_errors(work)
        if isinstance(outcome, EngineFailed) and self._engine.client.errored:
            return EngineFailed(outcome.public_message)
        return outcome

    async def _is_healthy(self) -> bool:
        try:
            async with asyncio.timeout(HANG_TIMEOUT_S):
                await self._engine.check_health()
        except (EngineFailed, TimeoutError):
            return False
        return True
