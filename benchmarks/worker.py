"""Fleets of rollout workers on the ledger, for measurements with agents and of the engine alone."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import psutil
import ray
import yaml
from prometheus_client import REGISTRY

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.vllm_engine import Engine
from agent_rft.actors.grading.grader_pool import GraderPoolActor
from agent_rft.actors.rollout.canary import CANARY_LIMITS
from agent_rft.actors.rollout.engine_assignment import AssignEngine, find_idlest
from agent_rft.actors.rollout.episode import EpisodeSpec
from agent_rft.actors.rollout.fleet import Fleet
from agent_rft.actors.rollout.rollout_worker import RolloutWorker, WorkerConfig
from agent_rft.actors.runtime.telemetry.exporter import MetricsAddress
from agent_rft.actors.tools.dispatcher_actor import start_dispatchers
from agent_rft.cluster.checks.check_job import CheckedJob, check_job
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.cluster.ray_cluster.ray_session import ray_session
from agent_rft.cluster.ray_cluster.reservations import Reservations
from agent_rft.events import Event
from agent_rft.spec.job_file import load_job
from benchmarks.enlarged import OWN_SIZE, Size, enlarged
from benchmarks.ledger_seeds import for_real_model, job_of
from benchmarks.local import LOCAL, dtype_here
from examples.ledger.services import services

REAL_COMPLETION_TOKENS = 2048
PROMPT_TOKENS = "vllm:prompt_tokens_by_source_total"
ROOT = Path(__file__).parents[1]
JOB = ROOT / "examples" / "ledger" / "job.yaml"


def as_actor(actor_class: type, **options: Any) -> Any:
    """Return the class as a Ray actor whose process finds the benchmarks, which are not installed.

    `options` are those of Ray's actors. Workers get no working directory on their module search path.
    """
    environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    return cast(Any, ray.remote(actor_class)).options(runtime_env=environment, **options)


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and the number of tokens to sample after it."""

    prompt: list[int]
    length: int


class MeasuredWorker(RolloutWorker):
    """A rollout worker whose engine can be measured, and used without episodes."""

    @property
    def _vllm(self) -> Any:
        assert isinstance(self._engine, Engine)
        return self._engine.async_llm_client

    async def mark(self) -> tuple[float, int]:
        """The time in seconds and the number of tokens sampled so far."""
        return time.monotonic(), self._engine.sampled_tokens

    async def processor_s(self) -> float:
        """CPU time of this process and the engine's so far, in seconds."""
        here = psutil.Process()
        times = [process.cpu_times() for process in (here, *here.children(recursive=True))]
        return sum(spent.user + spent.system for spent in times)

    async def computed_prompt_tokens(self) -> int:
        """Return the prompt tokens that the engine has computed, without those found in its prefix cache.

        Needs vLLM's own metrics.
        """
        samples = [s for metric in REGISTRY.collect() for s in metric.samples if s.name == PROMPT_TOKENS]
        return sum(int(s.value) for s in samples if s.labels["source"] == "local_compute")

    async def forget(self) -> None:
        """Empty the prefix cache, so that later requests cannot reuse it."""
        await self._vllm.reset_prefix_cache()

    # -- an update that the sender drives step by step, as vLLM's own transports do ------------------------------------

    async def begin_update(self) -> None:
        """Pause, keeping the requests in flight, and begin to load weights."""
        self._began = time.monotonic()
        await self._vllm.engine_core.pause_scheduler_async(mode="keep", clear_cache=False)
        await self._vllm.start_weight_update()

    async def load(self, update: Any) -> None:
        """Load what the sender sends meanwhile, or what the message refers to."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._vllm.update_weights(WeightTransferUpdateRequest(update_info=update))

    async def finish_update(self) -> None:
        """Finish loading, and resume."""
        await self._vllm.finish_weight_update()
        await self._vllm.resume_generation()
        self._pause_s = time.monotonic() - self._began

    async def last_pause_s(self) -> float:
        return self._pause_s

    async def complete(self, requests: Sequence[Request], at_once: int) -> list[tuple[float, int]]:
        """Sample each request at exactly its length with vLLM alone; return when each ended and its number of tokens.

        Requests are sent in order, `at_once` at a time; with more than the engine has slots, its queue is never empty.
        Sampling is as in training: seeds, temperature 1, log-probabilities.
        """
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        slots = asyncio.Semaphore(at_once)

        async def one(index: int, request: Request) -> tuple[float, int]:
            params = SamplingParams(
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                seed=index,
                max_tokens=request.length,
                ignore_eos=True,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
                skip_clone=True,
            )
            async with slots:
                request_id = f"plain-{time.monotonic()}-{index}"
                stream = self._vllm.generate(tokens_input(request.prompt), params, request_id)
                outputs = [output async for output in stream]
            return time.monotonic(), len(outputs[-1].outputs[0].token_ids)

        return await asyncio.gather(*(one(i, request) for i, request in enumerate(requests)))


@dataclass(frozen=True, slots=True)
class LedgerFleet:
    """A fleet that runs the ledger's episodes, and the worker of each of its engines."""

    fleet: Fleet
    workers: Sequence[Any]
    prepared: CheckedJob

    @property
    def worker(self) -> Any:
        """The worker of a fleet with one engine."""
        (worker,) = self.workers
        return worker


@asynccontextmanager
async def ledger_fleet(
    slots: int, *server_options: str, size: Size = OWN_SIZE, model: Path | None = None
) -> AsyncIterator[LedgerFleet]:
    """Start tools, grader, dispatcher and one engine with `slots` slots, as a training run would."""
    async with ledger_fleets(slots, [None], *server_options, size=size, model=model) as (fleet,):
        yield fleet


@asynccontextmanager
async def ledger_fleets(
    slots: int,
    addresses: Sequence[MetricsAddress | None],
    *server_options: str,
    vllms_own: bool = True,
    size: Size = OWN_SIZE,
    model: Path | None = None,
    engines: int = 1,
    assign: AssignEngine = find_idlest,
) -> AsyncIterator[list[LedgerFleet]]:
    """Start one fleet of `engines` for each of `addresses`, with the same tools and grader.

    A fleet exports its metrics at its address, or none for None. `vllms_own` enables vLLM's own metrics in fleets with
    an address, and in fleets with several engines. `assign` chooses the engine of each rollout. `size` enlarges the
    base model; `model` is a trained one that runs the episodes of `job_gpu.yaml` instead. Engines are on GPUs if there
    are any, and nothing is reserved for a learner.
    """
    with services(*server_options) as environment, TemporaryDirectory() as folder:
        os.environ.update(environment)
        job = load_job(JOB if model is None else real_job(model, Path(folder)))
        if size != OWN_SIZE:
            job = job.model_copy(update={"model": enlarged(Path(job.model), size, Path(folder), dtype_here())})
        with ray_session(None) as nodes:
            prepared = await check_job(job, ModelFolder.find(job.model), nodes, Path("/tmp"), LOCAL, trains=False)
            seats = Reservations(replace(prepared.placement, engines=len(addresses) * engines), "benchmark")
            await seats.wait(print)
            fleets: list[LedgerFleet] = []
            try:
                for index, metrics in enumerate(addresses):
                    options = [seats.engine_options(index * engines + engine) for engine in range(engines)]
                    log_stats = vllms_own and (metrics is not None or engines > 1)
                    fleets.append(await _fleet(prepared, slots, options, metrics, log_stats, assign))
                yield fleets
            finally:
                for ledger in fleets:
                    await ledger.fleet.shutdown()


def real_job(model: Path, folder: Path) -> Path:
    """Write a job for a trained model, with `job_gpu.yaml`'s episodes and one engine."""
    settings = {"cluster.engines": 1, "cluster.engine_cores": 1, "limits.max_completion_tokens": REAL_COMPLETION_TOKENS}
    files = for_real_model(model, folder)
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job_of(7, files["training_file"], settings, "job_gpu.yaml") | files))
    return path


async def _fleet(
    prepared: CheckedJob,
    slots: int,
    options: Sequence[dict[str, Any]],
    metrics: MetricsAddress | None,
    log_stats: bool,
    assign: AssignEngine,
) -> LedgerFleet:
    job, reinforcement = prepared.job, prepared.job.reinforcement
    dtype = prepared.placement.dtype
    config = WorkerConfig(
        EngineConfig(
            job.model,
            dtype,
            prepared.context_length,
            slots,
            job.seed,
            gpus=prepared.placement.engine_gpus,
            log_stats=log_stats,
        ),
        EpisodeSpec(
            f"{job.seed}",
            reinforcement.limits,
            reinforcement.reward,
            reinforcement.max_episode_steps,
            prepared.context_length,
        ),
        prepared.dialect,
        start_dispatchers(reinforcement.tools, LOCAL, 1, metrics=metrics),
        cast(Any, GraderPoolActor).remote(reinforcement, LOCAL, metrics),
        metrics=metrics,
    )
    workers: list[Any] = []

    def spawn(index: int) -> Any:
        workers.append(as_actor(MeasuredWorker, max_concurrency=10_000, **options[index]).remote(config))
        return workers[-1]

    def show(event: Event) -> None:
        print(f"{event.level}: {event}")

    fleet = Fleet(spawn, len(options), assign, CANARY_LIMITS[dtype], reinforcement.limits, show)
    await fleet.start()
    return LedgerFleet(fleet, workers, prepared)
