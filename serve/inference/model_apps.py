"""Model serving with Ray Serve. An application serves either one model, or a base model and its adapters.

Each replica of an application runs one engine. Ray Serve places the engines, balances requests, scales with the load,
replaces failed engines, and lets engines finish their requests before they stop.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import ray
from ray import serve as ray_serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException
from ray.serve.schema import ApplicationStatus

from agent_rft.actors.engine.chat.chat_engine import ChatEngine, ServedModel
from agent_rft.actors.engine.chat.chat_model import Refusal
from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.engine_memory import adapter_slot_rank
from agent_rft.actors.runtime.telemetry.exporter import MetricsAddress, metrics_port, start_telemetry
from agent_rft.chat.serve_settings import ServeSettings
from agent_rft.cluster.planning.model_folder import MAX_AUTO_CONTEXT, find_model
from agent_rft.cluster.planning.model_shape import get_text_config, read_config, read_max_context
from agent_rft.cluster.ray_cluster.cluster_usage import MODEL_APPS, ClusterUsage, read_usage, record_model_name
from agent_rft.cluster.ray_cluster.ray_internals import bind_replica_to_loopback
from agent_rft.cluster.ray_cluster.ray_session import is_local_address
from agent_rft.errors import EngineFailed, Problem, RftError, UserError
from agent_rft.serve.inference.model_server import ANSWER_TIMEOUT_S, Answers, AppState, NotServed
from agent_rft.serve.stores.model_registry import ModelRecord
from agent_rft.spec.operator.operator_config import EngineLimits
from agent_rft.trainer.learner.adapter import AdapterFolder, is_adapter

DEPLOYMENT = "engine"
QUEUE = 4
"""Maximum requests per replica, as a multiple of its maximum concurrent sequences."""
SERVED_RANK = 32
"""Minimum size of an engine's adapter slots, as a LoRA rank.

An adapter with a larger rank gets an engine with larger slots."""
UPSCALE_S = 15.0
HEALTH_S = 5.0
IDLE_TIMEOUT_S = 5.0
STATES = {
    ApplicationStatus.RUNNING: AppState.RUNNING,
    ApplicationStatus.DEPLOY_FAILED: AppState.FAILED,
    ApplicationStatus.DELETING: AppState.STOPPING,
}
"""States by Ray Serve status; all other statuses, such as DEPLOYING and UNHEALTHY, count as STARTING."""


class ServedEngine(Protocol):
    """Interface of a replica's engine. Implemented by agent_rft.actors.engine.chat.chat_engine.ChatEngine."""

    @property
    def has_died(self) -> bool: ...

    async def start(self) -> RftError | None: ...

    async def chat(
        self, body: Mapping[str, Any], model: ServedModel | None = None
    ) -> dict[str, Any] | Refusal | RftError: ...

    def stream(
        self, body: Mapping[str, Any], model: ServedModel | None = None
    ) -> AsyncIterator[dict[str, Any] | Refusal | RftError]: ...

    async def shutdown(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineResources:
    """Resources of each engine. `dtype` is the same as in training: float32 on CPUs, bfloat16 on GPUs."""

    cores: int
    gpus: int
    max_num_seqs: int
    max_adapters: int = EngineLimits().max_adapters

    @classmethod
    def from_limits(cls, limits: EngineLimits, cluster: Mapping[str, float]) -> EngineResources:
        gpus = int(cluster.get("GPU", 0) > 0) if limits.gpus is None else limits.gpus
        return cls(limits.cores, gpus, limits.max_num_seqs, limits.max_adapters)

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.gpus else "float32"

    @property
    def bundle(self) -> dict[str, float]:
        """Resources of an engine, keyed by Ray's resource names."""
        return {"CPU": float(self.cores)} | ({"GPU": float(self.gpus)} if self.gpus else {})


MakeEngine = Callable[[ModelRecord, EngineResources], ServedEngine]


def make_chat_engine(record: ModelRecord, resources: EngineResources) -> ServedEngine:
    """Return an engine for a model, without starting it. For an adapter, the engine loads the base model.

    Raises:
        UserError: The model is missing or unreadable.
    """
    config = make_engine_config(record, resources)
    return ChatEngine(config, record.settings if config.lora is None else ServeSettings())


def make_engine_config(
    record: ModelRecord,
    resources: EngineResources,
    find: Callable[[str], tuple[Path | None, Problem | None]] = find_model,
) -> EngineConfig:
    """Return the engine settings for a model. `find` returns the folder of a model path or Hugging Face name.

    Raises:
        UserError: The model is missing or unreadable.
    """
    adapter = AdapterFolder.read(Path(record.folder))
    folder, problem = find(record.folder if adapter is None else str(adapter.base))
    if folder is None:
        raise UserError(
            f"{record.id}: " + (f"{problem.message}; {problem.fix}" if problem else "the model does not exist")
        )
    try:
        limit = read_max_context(get_text_config(read_config(folder)))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"the model {folder.name} cannot be read") from error
    max_length, context = min(limit or MAX_AUTO_CONTEXT, MAX_AUTO_CONTEXT), record.settings.context_length
    return EngineConfig(
        model=str(folder),
        dtype=resources.dtype,
        context_length=(context or max_length) if adapter is None else max(context or 0, max_length),
        max_num_seqs=resources.max_num_seqs,
        seed=0,
        gpus=resources.gpus,
        log_stats=metrics_port() > 0,
        lora=None if adapter is None else replace(adapter.config, rank=_adapter_slot_rank(adapter)),
        adapter_slots=resources.max_adapters,
    )


def _adapter_slot_rank(adapter: AdapterFolder) -> int:
    return adapter_slot_rank(max(SERVED_RANK, adapter.config.rank))


def to_served_model(record: ModelRecord) -> ServedModel:
    """Return the part of `record` that is sent to the engine with each request."""
    return ServedModel(record.folder if is_adapter(Path(record.folder)) else None, record.settings)


class EngineReplica:
    """Ray Serve replica with one engine. The engine runs as long as the replica exists.

    A replica that replaces a failed replica has the same Prometheus labels: the model's name and the replica's rank.
    """

    async def __init__(self, make: MakeEngine, record: ModelRecord, resources: EngineResources) -> None:  # type: ignore[misc]
        is_local = is_local_address(ray.get_runtime_context().gcs_address)
        if is_local:
            bind_replica_to_loopback()
        name = record.id if AdapterFolder.read(Path(record.folder)) is None else record.base
        address = MetricsAddress.from_environment(name, local=is_local)
        start_telemetry(address, f"engine-{ray_serve.get_replica_context().rank.rank}")
        self._engine = await asyncio.to_thread(make, record, resources)
        self._calls = 0
        error = await self._engine.start()
        if error is not None:
            raise error
        self._idle_since = time.monotonic()

    async def answer(self, model: ServedModel, body: dict[str, Any], stream: bool) -> AsyncGenerator[Any]:
        """Answer a request for a model, and yield the same values as `ModelHosting.answer`.

        An RftError is yielded instead of raised, because Ray would change its class.
        """
        self._calls += 1
        try:
            yield None
            if not stream:
                yield await self._engine.chat(body, model)
                return
            async for chunk in self._engine.stream(body, model):
                yield chunk
        finally:
            self._calls -= 1
            self._idle_since = time.monotonic()

    def idle_s(self) -> float:
        return 0.0 if self._calls else time.monotonic() - self._idle_since

    def check_health(self) -> None:
        """Raise EngineFailed if the engine died, so that Ray Serve replaces the replica."""
        if self._engine.has_died:
            raise EngineFailed("the engine died")

    async def __del__(self) -> None:
        await self._engine.shutdown()


class RayServeModels:
    """ModelHosting on Ray Serve, in the cluster that this process is connected to.

    `grows` means that the cluster adds nodes when an engine needs them.
    """

    def __init__(
        self,
        limits: EngineLimits,
        resources: EngineResources,
        make: MakeEngine = make_chat_engine,
        grows: bool = False,
        use: Callable[[], ClusterUsage] = read_usage,
    ) -> None:
        self._limits = limits
        self._resources = resources
        self._make = make
        self._grows = grows
        self._use = use

    def app_names(self, record: ModelRecord) -> list[str]:
        adapter = AdapterFolder.read(Path(record.folder))
        if adapter is None:
            return [self._shared_app_name(record.folder), self._app_name(record.folder, record.settings)]
        longer = (record.settings.context_length or 0) > MAX_AUTO_CONTEXT
        return [
            self._shared_app_name(
                str(adapter.base), _adapter_slot_rank(adapter), record.settings.context_length if longer else None
            )
        ]

    def _shared_app_name(self, base: str, rank: int = SERVED_RANK, context_length: int | None = None) -> str:
        """Return the name of the application of a base model and its adapters."""
        return self._app_name(str(find_model(base)[0] or base), rank, context_length)

    def _app_name(self, *parts: Any) -> str:
        text = repr((*parts, self._resources, self._limits.max_replicas))
        return f"{MODEL_APPS}{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    async def states(self) -> dict[str, AppState]:
        status = await asyncio.to_thread(ray_serve.status)
        apps = status.applications.items()
        return {name: STATES.get(app.status, AppState.STARTING) for name, app in apps if name.startswith(MODEL_APPS)}

    async def deploy(self, name: str, record: ModelRecord) -> None:
        resources = self._resources
        deployment = ray_serve.deployment(EngineReplica).options(
            name=DEPLOYMENT,
            ray_actor_options={"num_cpus": resources.cores, "num_gpus": resources.gpus},
            autoscaling_config={
                "min_replicas": 1,
                "max_replicas": self._limits.max_replicas,
                "target_ongoing_requests": resources.max_num_seqs,
                "upscale_delay_s": UPSCALE_S,
                "downscale_delay_s": self._limits.idle_s,
            },
            max_ongoing_requests=QUEUE * resources.max_num_seqs,
            max_constructor_retry_count=1,
            health_check_period_s=HEALTH_S,
            graceful_shutdown_timeout_s=ANSWER_TIMEOUT_S,
            graceful_shutdown_wait_loop_s=0.5,
        )
        await asyncio.to_thread(record_model_name, name, record.id)
        target = ray_serve.RunTarget(deployment.bind(self._make, record, resources), name, route_prefix=None)
        await asyncio.to_thread(ray_serve.run_many, [target], wait_for_applications_running=False)

    async def remove(self, name: str) -> None:
        await asyncio.to_thread(ray_serve.delete, name, _blocking=False)

    async def idle_s(self, name: str) -> float | None:
        """Return the seconds since an engine of the application was last used, or None if no engine replies."""
        try:
            async with asyncio.timeout(IDLE_TIMEOUT_S):
                found: list[float] = await _get_handle(name).broadcast("idle_s").results_async()
        except (RayError, RayServeException, TimeoutError):
            return None
        return min(found, default=None)

    async def blocking_runs(self) -> list[str]:
        if self._grows:
            return []
        use = await asyncio.to_thread(self._use)
        return [] if use.can_hold(self._resources.bundle) else [*use.waiting, *use.running]

    async def has_waiting_run(self) -> bool:
        return bool((await asyncio.to_thread(self._use)).waiting)

    async def apps_to_release(self, idle_s: Mapping[str, float]) -> list[str]:
        use = await asyncio.to_thread(self._use)
        return [] if use.adds_nodes else use.choose_apps_to_stop(self._resources.bundle, idle_s)

    async def answer(self, name: str, record: ModelRecord, body: Mapping[str, Any], *, stream: bool) -> Answers:
        handle = _get_handle(name).options(method_name="answer", stream=True)
        answers = handle.remote(to_served_model(record), dict(body), stream)
        ended = False
        try:
            async for answer in answers:
                if isinstance(answer, RftError):
                    raise answer
                yield answer
            ended = True
        except DeploymentUnavailableError:
            raise NotServed(name) from None
        except RayTaskError:  # a bug
            raise
        except RayError as error:
            raise EngineFailed(f"the process of a served model was lost ({type(error).__name__})") from None
        finally:
            if not ended:
                answers.cancel()


def remove_models() -> None:
    """Remove the applications of all served models from this cluster."""
    for name in ray_serve.status().applications:
        if name.startswith(MODEL_APPS):
            ray_serve.delete(name, _blocking=False)


def has_only_model_apps() -> bool:
    """Return whether all Ray Serve applications on this cluster are served models."""
    return all(name.startswith(MODEL_APPS) for name in ray_serve.status().applications)


def _get_handle(name: str) -> Any:
    return ray_serve.get_deployment_handle(DEPLOYMENT, name, _check_exists=False)
