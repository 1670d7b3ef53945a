"""A job's client of a shared engine, with the methods of `Engine`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from agent_rft.actors.engine.shared.shared_engine import SharedConfig, retry_if_engine_ends
from agent_rft.actors.engine.vllm_engine import Completion, PromptScores
from agent_rft.actors.runtime.actor_calls import await_result, call_actor
from agent_rft.actors.runtime.channel import ChannelClient
from agent_rft.actors.weights.start_timeout import start_timeout_s
from agent_rft.errors import EngineFailed
from agent_rft.rows.rollout_json import experts_from_json
from agent_rft.trainer.learner.weight_buckets import BucketLayout, WeightLoadResult

LEASE_TIMEOUT_S = 300.0
ENGINE_FULL_MESSAGE = (
    "the shared engine {name} has been full for {wait_s:g} s. "
    "Wait until one of its jobs ends, or remove cluster.share_engines."
)


class EngineClient:
    """Client of a shared engine, used in place of an `Engine`. Each client is a separate tenant of the engine.

    If a job's engine worker is replaced, the new worker becomes a new tenant.
    """

    def __init__(self, config: SharedConfig, wait_s: float = LEASE_TIMEOUT_S) -> None:
        self._config = config
        self._wait_s = wait_s
        self._job = secrets.token_hex(16)
        self._actor: Any = None
        self._renew_task: asyncio.Task[None] | None = None
        self._live_metrics: dict[str, float] = {}
        self.version = 0
        self.sampled_tokens = 0

    async def start(self) -> None:
        """Find or start the shared engine, and add this client as a tenant.

        Raises:
            EngineFailed: The engine cannot start, or still has the maximum number of jobs after `wait_s` seconds.
        """
        await retry_if_engine_ends(self._join_engine, self._config.tick_s)

    async def _join_engine(self) -> None:
        name, self._actor = self._config.name, await self._config.reserve_actor()
        await call_actor(
            self._actor.start.remote(), name, EngineFailed, start_timeout_s(Path(self._config.engine.model))
        )
        await self._acquire_lease()
        self._channel = ChannelClient(self._actor, name, EngineFailed)
        await self._channel.connect()
        await self._renew_lease()
        self._renew_task = asyncio.create_task(self._renew_forever())

    async def _acquire_lease(self) -> None:
        name, config = self._config.name, self._config
        for _ in range(1 + round(self._wait_s)):
            if await call_actor(
                self._actor.add_tenant.remote(self._job, config.lora, config.adapter), name, EngineFailed
            ):
                return
            await asyncio.sleep(1.0)
        raise EngineFailed(ENGINE_FULL_MESSAGE.format(name=name, wait_s=self._wait_s))

    async def _renew_lease(self) -> None:
        self._live_metrics = await self._channel.call("renew", self._job)

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._config.tick_s)
            with suppress(EngineFailed):  # the next request raises it
                await self._renew_lease()

    async def init_transport(self, info: dict[str, Any]) -> None:
        """Do nothing, because adapters reach a shared engine through shared memory."""

    async def generate(self, prompt: Sequence[int], **options: Any) -> Completion:
        """Sample one completion; see `Engine.generate`."""
        done = await self._channel.call("generate", self._job, list(prompt), options)
        token_ids, logprobs, versions, stopped, model_s, experts = done
        self.sampled_tokens += len(token_ids)
        arrays = np.array(logprobs, np.float32), np.array(versions, np.int32)
        return Completion(token_ids, *arrays, stopped, model_s, experts_from_json(experts))

    async def score_prompt(self, token_ids: Sequence[int]) -> PromptScores:
        """Return the log-probabilities of tokens, and their experts; see `Engine.score_prompt`."""
        call = self._actor.score_prompt.remote(self._job, list(token_ids))
        scores: PromptScores = await call_actor(call, self._config.name, EngineFailed)
        return scores

    def stage_bucket(self, data: NDArray[np.uint8], layout: BucketLayout) -> None:
        """Write one bucket to shared memory; see `Engine.stage_bucket`.

        Blocks until the bucket is written, so do not call this method on the event loop.
        """
        error = ray.get(self._actor.stage_bucket.remote(self._job, data, layout))
        if error is not None:
            raise error

    async def load_staged(self, version: int) -> WeightLoadResult:
        """Load all staged buckets as `version`; see `Engine.load_staged`."""
        loaded: WeightLoadResult = await call_actor(
            self._actor.load_staged.remote(self._job, version), self._config.name, EngineFailed
        )
        self.version = version
        return loaded

    async def check_health(self) -> None:
        """Return when the engine has answered; see `Engine.check_health`."""
        await call_actor(self._actor.heartbeat.remote(), self._config.name, EngineFailed)

    def live_metrics(self) -> dict[str, float]:
        """Return the job's metrics from the time of the last lease renewal; see `Engine.live_metrics`."""
        return self._live_metrics

    async def end_lease(self) -> None:
        """End this client's lease. The shared engine keeps running."""
        if self._renew_task is not None:
            self._renew_task.cancel()
            with suppress(ray.exceptions.RayError):
                await await_result(self._actor.remove_tenant.remote(self._job))
