"""The Ray actor of one engine, which runs the engine's rollouts as hundreds of coroutines on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_rft.actors.engine.chat.tokenizer import load_engine_tokenizer
from agent_rft.actors.engine.chat.turn_parsers import load_parser
from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.shared.shared_engine import SharedConfig
from agent_rft.actors.engine.shared.shared_engine_client import EngineClient
from agent_rft.actors.engine.vllm_engine import Engine, PromptScores
from agent_rft.actors.grading.grader_pool import GraderPoolClient
from agent_rft.actors.rollout.episode import EpisodeRunner, EpisodeSpec, RolloutRequest
from agent_rft.actors.runtime.actor_calls import return_errors
from agent_rft.actors.runtime.channel import ChannelActor, ChannelClient
from agent_rft.actors.runtime.process_setup import fast_imports, lower_priority
from agent_rft.actors.runtime.rollout_stages import WorkInProgress
from agent_rft.actors.runtime.telemetry.exporter import MetricsAddress, start_telemetry
from agent_rft.actors.runtime.telemetry.tracing import create_tracer
from agent_rft.actors.tools.dispatcher_actor import DispatcherClient, WorkerSessions
from agent_rft.chat.dialect import Dialect
from agent_rft.chat.renderer import Renderer
from agent_rft.errors import RftError
from agent_rft.rows.rollout_json import outcome_from_json, outcome_to_json, task_from_json, task_to_json
from agent_rft.spec.operator.operator_config import TraceSettings
from agent_rft.trainer.learner.weight_buckets import BucketLayout, WeightLoadResult
from agent_rft.types import DiscardedRollout, Rollout


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Configuration of a worker. A worker that replaces another has the same configuration, except for `owner`.

    `owner` identifies the worker process as the owner of tool sessions, or is None if the job has no sessions. `name`
    is the engine's name in the fleet. If `shared` is set, the worker uses a shared engine instead of the dedicated
    engine that `engine` describes.
    """

    engine: EngineConfig
    episode: EpisodeSpec
    dialect: Dialect
    dispatchers: Sequence[Any]
    graders: Any
    owner: str | None = None
    name: str = "engine"
    metrics: MetricsAddress | None = None
    shared: SharedConfig | None = None
    traces: TraceSettings | None = None


class RolloutWorker(ChannelActor):
    """Actor that runs rollouts on its engine. Methods return expected errors (RftError) instead of raising them."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._engine = Engine(config.engine) if config.shared is None else EngineClient(config.shared)
        self._recorder = start_telemetry(config.metrics, config.name)
        self._tracer = create_tracer(config.traces, config.name, config.metrics)
        self._recorder.initialize("engine_pause_s")
        self._recorder.add_source(self._engine.live_metrics)
        self._serve_methods({"run": self._run_episode})

    async def start(self) -> RftError | None:
        """Load the engine and create the episode runner."""
        with fast_imports():
            return await return_errors(self._start_engine())

    async def _start_engine(self) -> None:
        await self._engine.start()
        lower_priority()  # after the engine's processes have started, so that they do not inherit it
        tokenizer = load_engine_tokenizer(Path(self._config.engine.model))
        spec, owner = self._config.episode, self._config.owner
        dispatcher = DispatcherClient(*self._config.dispatchers)
        renderer = Renderer(tokenizer, self._config.dialect)
        renderer.warm_up()
        self._runner = EpisodeRunner(
            spec,
            renderer,
            load_parser(renderer.family, tokenizer),
            partial(
                self._engine.generate,
                stop_token_ids=list(renderer.stop_tokens),
                max_reasoning_tokens=spec.max_reasoning_tokens if self._config.engine.reasoning_delimiters else None,
            ),
            dispatcher.call_turn,
            GraderPoolClient(self._config.graders).grade,
            None if owner is None else WorkerSessions(dispatcher, owner),
            self._config.name,
            tracer=self._tracer,
        )

    async def _run_episode(self, task: dict[str, Any], *rest: Any) -> dict[str, Any]:
        outcome = await self._runner.run(RolloutRequest(task_from_json(task), *rest))
        return outcome_to_json(outcome, with_experts=True)

    @property
    def _dedicated_engine(self) -> Engine:
        """The worker's dedicated engine, for calls that a shared engine does not support."""
        if isinstance(self._engine, EngineClient):
            raise TypeError("a shared engine does not support this call")
        return self._engine

    async def stage_bucket(self, data: NDArray[np.uint8], layout: BucketLayout) -> RftError | None:
        return await return_errors(asyncio.to_thread(self._engine.stage_bucket, data, layout))

    async def load_staged(self, version: int) -> WeightLoadResult | RftError:
        """Load the staged weight buckets into the engine as policy version `version`."""
        return await self._load_weights(self._engine.load_staged(version))

    async def receive_weights(self, version: int, layouts: Sequence[BucketLayout]) -> WeightLoadResult | RftError:
        """Receive the weight buckets that the learner broadcasts, and load them as policy version `version`."""
        updates = [{"tensors": [list(tensor) for tensor in layout]} for layout in layouts]
        return await self._load_weights(self._dedicated_engine.load_weights(version, updates))

    async def _load_weights(self, update: Awaitable[WeightLoadResult]) -> WeightLoadResult | RftError:
        self._runner.in_flight.enter("", "weight update")
        try:
            loaded = await return_errors(update)
        finally:
            self._runner.in_flight.leave("")
        if isinstance(loaded, WeightLoadResult):
            self._recorder.record("engine_pause_s", loaded.pause_s)
        return loaded

    async def init_transport(self, info: dict[str, Any]) -> RftError | None:
        return await return_errors(self._engine.init_transport(info))

    async def offload(self, discards: bool) -> bool | RftError:
        """Offload or discard the engine's weights; see `Engine.offload`."""
        return await return_errors(self._dedicated_engine.offload(discards))

    async def reload(self) -> RftError | None:
        return await return_errors(self._dedicated_engine.reload())

    async def score_prompt(self, token_ids: Sequence[int]) -> PromptScores | RftError:
        return await return_errors(self._engine.score_prompt(token_ids))

    async def heartbeat(self) -> list[WorkInProgress] | RftError:
        """Return the longest-running work of each stage, or an error if the engine's processes do not answer."""
        error = await return_errors(self._engine.check_health())
        return error or self._runner.in_flight.list_longest()

    async def engine_stats(self) -> dict[str, Any]:
        stats = {"version": self._engine.version, "sampled_tokens": self._engine.sampled_tokens}
        return stats if isinstance(self._engine, EngineClient) else stats | {"busy_s": self._engine.busy_s}

    async def shutdown(self) -> None:
        if isinstance(self._engine, EngineClient):
            await self._engine.end_lease()
        else:
            self._engine.shutdown()
        await asyncio.to_thread(self._tracer.flush)


async def run_on_worker(channel: ChannelClient, request: RolloutRequest) -> Rollout | DiscardedRollout:
    """Run a rollout on the RolloutWorker at the other end of `channel`; return the result of `EpisodeRunner.run`.

    Raises:
        EngineFailed: The worker's process died or hangs.
    """
    r = request
    values = await channel.call("run", task_to_json(r.task), r.epoch, r.sample, r.attempt, r.temperature, r.index)
    return outcome_from_json(values)
