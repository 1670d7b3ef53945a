"""Fleets of one rollout worker on the ledger, for measurements with agents and of the engine alone."""

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
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from actors.engine.vllm_engine import EngineConfig
from actors.grading.pool import GraderPoolActor
from actors.rollout.episode import EpisodeSpec
from actors.rollout.fleet import CANARY_LIMITS, Fleet
from actors.rollout.worker import RolloutWorker, WorkerConfig
from actors.runtime.exporter import MetricsAddress
from actors.tools.actor import start_dispatchers
from benchmarks.local import LOCAL
from cluster.preflight.prepare import Prepared, prepare
from cluster.ray_cluster.seats import Seats
from cluster.ray_cluster.session import ray_session
from cluster.views.sentences import sentence
from examples.ledger.services import services
from trainer.events import Event
from trainer.spec.job_file import load_job

JOB = Path(__file__).parents[1] / "examples" / "ledger" / "job.yaml"


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and the number of tokens to sample after it."""

    prompt: list[int]
    length: int


class MeasuredWorker(RolloutWorker):
    """A rollout worker whose engine can be measured, and used without episodes."""

    async def mark(self) -> tuple[float, int]:
        """The time in seconds and the number of tokens sampled so far."""
        return time.monotonic(), self._engine.sampled_tokens

    async def processor_s(self) -> float:
        """CPU time of this process and the engine's so far, in seconds."""
        here = psutil.Process()
        times = [process.cpu_times() for process in (here, *here.children(recursive=True))]
        return sum(spent.user + spent.system for spent in times)

    async def forget(self) -> None:
        """Empty the prefix cache, so that later requests cannot reuse it."""
        await self._engine._llm.reset_prefix_cache()

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
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
                skip_clone=True,
            )
            async with slots:
                request_id = f"plain-{time.monotonic()}-{index}"
                stream = self._engine._llm.generate(tokens_input(request.prompt), params, request_id)
                outputs = [output async for output in stream]
            return time.monotonic(), len(outputs[-1].outputs[0].token_ids)

        return await asyncio.gather(*(one(i, request) for i, request in enumerate(requests)))


@dataclass(frozen=True, slots=True)
class LedgerFleet:
    """A fleet with one engine that runs the ledger's episodes."""

    fleet: Fleet
    worker: Any
    prepared: Prepared


@asynccontextmanager
async def ledger_fleet(slots: int, *server_options: str, layers: int | None = None) -> AsyncIterator[LedgerFleet]:
    """Start tools, grader, dispatcher and one engine with `slots` slots, as a training run would."""
    async with ledger_fleets(slots, [None], *server_options, layers=layers) as (fleet,):
        yield fleet


@asynccontextmanager
async def ledger_fleets(
    slots: int,
    addresses: Sequence[MetricsAddress | None],
    *server_options: str,
    vllms_own: bool = True,
    layers: int | None = None,
) -> AsyncIterator[list[LedgerFleet]]:
    """Start one fleet for each of `addresses`, with the same tools and grader.

    A fleet exports its metrics at its address, with vLLM's own if `vllms_own`, or none for None. With `layers`, the
    base model is deepened to this number of layers.
    """
    with services(*server_options) as environment, TemporaryDirectory() as folder:
        os.environ.update(environment)
        job = load_job(JOB)
        if layers is not None:
            job = job.model_copy(update={"model": deepened(Path(job.model), layers, Path(folder))})
        with ray_session(None) as nodes:
            prepared = await prepare(job, nodes, Path("/tmp"), LOCAL)
            seats = Seats(replace(prepared.placement, engines=len(addresses), learner_ranks=0), "benchmark")
            await seats.ready(print)
            fleets: list[LedgerFleet] = []
            try:
                for index, metrics in enumerate(addresses):
                    fleets.append(await _fleet(prepared, slots, seats.engine(index), metrics, vllms_own))
                yield fleets
            finally:
                for ledger in fleets:
                    await ledger.fleet.shutdown()


def deepened(model: Path, layers: int, folder: Path) -> str:
    """Save an equivalent but deeper model: the added layers write nothing into the residual stream."""
    config = AutoConfig.from_pretrained(model)
    kept = config.num_hidden_layers
    config.num_hidden_layers, config.layer_types = layers, config.layer_types[:1] * layers
    deep = AutoModelForCausalLM.from_config(config)
    deep.load_state_dict(deep.state_dict() | AutoModelForCausalLM.from_pretrained(model).state_dict())
    with torch.no_grad():
        for layer in deep.model.layers[kept:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    deep.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return str(folder)


async def _fleet(
    prepared: Prepared, slots: int, options: dict[str, Any], metrics: MetricsAddress | None, vllms_own: bool
) -> LedgerFleet:
    job, reinforcement = prepared.job, prepared.job.reinforcement
    dtype = prepared.placement.dtype
    config = WorkerConfig(
        EngineConfig(
            job.model, dtype, prepared.context_length, slots, job.seed, log_stats=vllms_own and metrics is not None
        ),
        EpisodeSpec(
            f"{job.seed}",
            reinforcement.limits,
            reinforcement.reward,
            reinforcement.max_episode_steps,
            prepared.context_length,
        ),
        job.cluster.tool_parser,
        prepared.renderer.template_arguments,
        start_dispatchers(reinforcement.tools, LOCAL, 1, metrics=metrics),
        cast(Any, GraderPoolActor).remote(reinforcement, LOCAL, metrics),
        metrics=metrics,
    )
    actor = ray.remote(MeasuredWorker)
    workers: list[Any] = []

    def spawn(index: int) -> Any:
        workers.append(actor.options(max_concurrency=10_000, **options).remote(config))
        return workers[-1]

    def show(event: Event) -> None:
        print(f"{event.level}: {sentence(event)}")

    fleet = Fleet(spawn, 1, CANARY_LIMITS[dtype], reinforcement.limits, show)
    await fleet.start()
    return LedgerFleet(fleet, workers[0], prepared)
