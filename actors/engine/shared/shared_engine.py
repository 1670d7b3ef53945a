"""Ray actor of an engine that several jobs share, each with its own adapters.

The actor belongs to the cluster and not to a job. The first job that needs the engine creates the actor. Later jobs
find the actor by its name, which contains a hash of all settings that must be equal. The engine ends when no job has
held a lease for a minute. Each job has a secret name, so that only the job's own processes can act for it.
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
from agent_rft.actors.engine.engine_memory import SHARED_ADAPTERS, adapter_slot_rank
from agent_rft.actors.engine.vllm_engine import Engine, PromptScores
from agent_rft.actors.runtime.actor_calls import LOST, UNREACHABLE, call_actor, return_errors
from agent_rft.actors.runtime.channel import ChannelActor
from agent_rft.actors.runtime.process_setup import end_process
from agent_rft.errors import EngineFailed, RftError
from agent_rft.rows.rollout_json import experts_to_json
from agent_rft.trainer.learner.adapter import AdapterConfig, AdapterFolder
from agent_rft.trainer.learner.weight_buckets import BucketLayout, WeightLoadResult

TICK_S = 5.0
LEASE_TICKS = 12
"""Number of ticks (one minute) after which a lease ends if the job does not renew the lease."""
IDLE_TICKS = 12
"""Number of ticks (one minute) after which an engine without jobs ends."""
START_TICKS = 72
"""Number of ticks (six minutes) for which an engine waits for a job that is still waiting for other resources."""


class Leases:
    """Leases by which jobs use a shared engine. At most `max_jobs` jobs have a lease at a time."""

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
        """Reset the remaining time of a job's lease; do nothing if the lease has ended."""
        if job in self._ticks_left:
            self._ticks_left[job] = LEASE_TICKS

    def release(self, job: str) -> bool:
        """End the lease of a job; return whether the job had a lease."""
        self.keep_engine_for(IDLE_TICKS)
        return self._ticks_left.pop(job, None) is not None

    def keep_engine_for(self, ticks: int) -> None:
        """Keep the engine for at least `ticks` more ticks, even if no job has a lease."""
        self._idle_ticks_left = max(self._idle_ticks_left, ticks)

    def tick(self) -> list[str]:
        """Count one tick, end the leases that expire, and return the jobs that had these leases."""
        if not self._ticks_left:
            self._idle_ticks_left -= 1
        self._ticks_left = {job: left - 1 for job, left in self._ticks_left.items()}
        late = [job for job, left in self._ticks_left.items() if left <= 0]
        for job in late:
            self.release(job)
        return late

    @property
    def should_end(self) -> bool:
        """Whether the engine should end, because it has been idle for long enough."""
        return not self._ticks_left and self._idle_ticks_left <= 0


T = TypeVar("T")

NAMESPACE = "agent-rft"
MAX_ENGINE_TRIES = 4
HANG_TIMEOUT_S = 180.0
"""Seconds to wait for a health check of the engine. The shared engine ends if this time is exceeded."""


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """Name and configuration of a shared engine, and the adapters of one job that uses it.

    `lora` is the shape of the job's adapters. `adapter` is the folder of version 0; None: version 0 is the base model.
    `tick_s` is the number of seconds between two ticks of the engine.
    """

    name: str
    engine: EngineConfig
    cores: int
    lora: AdapterConfig
    adapter: Path | None = None
    tick_s: float = TICK_S

    @classmethod
    def for_job(cls, dedicated: EngineConfig, lora: AdapterConfig, cores: int, index: int) -> SharedConfig:
        """Return the configuration of the shared engine with number `index` for a job.

        `dedicated` is the configuration that an engine for this job alone would have.

        Raises:
            UserError: The job's model is an adapter of an unsupported kind.
        """
        adapter = AdapterFolder.read(Path(dedicated.model))
        base = Path(dedicated.model) if adapter is None else adapter.base
        slots = AdapterConfig(adapter_slot_rank(lora.rank), 1.0)
        engine = replace(dedicated, model=str(base), seed=0, log_stats=False, lora=slots, adapter_slots=SHARED_ADAPTERS)
        files = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in base.glob("*"))
        digest = hashlib.blake2b(repr((engine, cores, files)).encode(), digest_size=6).hexdigest()
        name = f"engine-{digest}-{index}"
        return cls(name, engine, cores, lora, None if adapter is None else adapter.path)

    def get_or_create_actor(self) -> Any:
        """Return the engine's actor; create it if it does not exist.

        The actor may still be waiting for its cores and GPUs.
        """
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
        """Return the engine's actor once Ray has assigned cores and GPUs to it."""
        return await retry_if_engine_ends(self._reserve_once, self.tick_s)

    async def _reserve_once(self) -> Any:
        actor = self.get_or_create_actor()
        await call_actor(actor.reserve.remote(), self.name, EngineFailed)
        return actor


async def retry_if_engine_ends(work: Callable[[], Awaitable[T]], pause_s: float) -> T:
    """Run `work`, and retry after `pause_s` seconds if `work` fails because the engine has ended.

    Retries are necessary because Ray can still find an engine by name while the engine shuts down.
    """
    for _ in range(MAX_ENGINE_TRIES):
        try:
            return await work()
        except EngineFailed as error:
            if error.details.get("kind") not in (LOST, UNREACHABLE):
                raise
        await asyncio.sleep(pause_s)
    return await work()


class SharedEngine(ChannelActor):
    """Ray actor of a shared engine. Each call acts for one job; expected errors are returned, not raised."""

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
        """Keep the engine for START_TICKS, even if no job uses it.

        Ray does not run this method until the actor has its cores and GPUs. A caller that awaits the method therefore
        waits for these resources. During START_TICKS, the caller can wait for other resources.
        """
        self._leases.keep_engine_for(START_TICKS)

    async def start(self) -> RftError | None:
        """Load the model in the first call; later calls wait for the first one. Return the error if loading fails."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._engine.start())
        error = await return_errors(asyncio.shield(self._starting))
        if error is None and not await self._is_healthy():
            self._shut_down()  # the caller starts another engine
        return error

    async def add_tenant(self, job: str, lora: AdapterConfig, adapter: Path | None) -> bool | RftError:
        """Add a tenant for a job; return False if the engine already has the maximum number of jobs."""
        if not self._leases.acquire(job):
            return False
        error = await return_errors(self._engine.add_tenant(job, lora, adapter))
        if error is not None:
            await self.remove_tenant(job)
        return error or True

    async def remove_tenant(self, job: str) -> None:
        """End a job's lease and remove its tenant; do nothing if the lease has already ended."""
        if self._leases.release(job):
            self._engine.remove_tenant(job)

    async def stage_bucket(self, job: str, data: NDArray[np.uint8], layout: BucketLayout) -> RftError | None:
        return await self._job_outcome(asyncio.to_thread(self._engine.stage_bucket, data, layout, job))

    async def load_staged(self, job: str, version: int) -> WeightLoadResult | RftError:
        return await self._job_outcome(self._engine.load_staged(version, job))

    async def score_prompt(self, job: str, token_ids: Sequence[int]) -> PromptScores | RftError:
        return await self._job_outcome(self._engine.score_prompt(token_ids, job))

    async def heartbeat(self) -> RftError | None:
        """Return None once the engine's processes have answered, or the error if the engine has died."""
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
        """Remove tenants whose leases have expired. End the engine if it has been idle too long or vLLM has died."""
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
        """Return a job's result or error.

        If vLLM died, the error does not contain the cause, because the cause may name another job.
        """
        outcome = await return_errors(work)
        if isinstance(outcome, EngineFailed) and self._engine.async_llm_client.errored:
            return EngineFailed(outcome.public_message)
        return outcome

    async def _is_healthy(self) -> bool:
        try:
            async with asyncio.timeout(HANG_TIMEOUT_S):
                await self._engine.check_health()
        except (EngineFailed, TimeoutError):
            return False
        return True
