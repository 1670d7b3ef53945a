"""One vLLM engine: tokens in, tokens out, each sampled token with its log-probability and its policy version.

A request never reuses cache blocks of older weights (its cache salt is the version). During an update of all weights no
request starts, and those in flight continue with the new ones; during one of an adapter they start as ever, and
those in flight end with the adapter with which they began.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_rft.actors.engine.adapters import Adapters, Line
from agent_rft.actors.engine.engine_config import EngineConfig, engine_args, set_environment, vllm_config
from agent_rft.actors.engine.failures import as_engine_failed
from agent_rft.actors.engine.sizes import WAIT_INSIDE
from agent_rft.actors.engine.slots import Slots
from agent_rft.actors.engine.vllm_client import VllmClient
from agent_rft.actors.engine.vllm_internals import tokens_request
from agent_rft.actors.engine.weight_updates import WeightUpdates
from agent_rft.actors.runtime.fair_slots import FairSlots
from agent_rft.actors.weights.shared_memory import SHM, remove_leftovers, unname_shared_memory
from agent_rft.errors import EngineFailed
from agent_rft.trainer.learner.adapter import AdapterConfig, AdapterFolder
from agent_rft.trainer.learner.layout import Layout, Loaded

WARM_UP_TOKENS = 8
LOGS_PER_SLOT = 4
"""Requests whose experts are kept, for each that runs at once; they are taken as soon as a request has ended."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion.

    `logprobs` and `versions` are [T], one entry per token of `token_ids`. `model_s` is its time in the engine, without
    waiting for a slot and without pauses. `stopped` says that an end token (the last of `token_ids`) ended it.
    `experts` [P + T - 1, L, k] are those that each of L layers chose for the tokens of the prompt and of the completion
    but its last, 0 in layers without, if the engine reports them.
    """

    token_ids: list[int]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    stopped: bool
    model_s: float
    experts: NDArray[np.integer[Any]] | None = None


class Engine:
    """Wraps vLLM's AsyncLLM. All methods run on one event loop.

    An engine that several jobs share has a line for each: its methods get the job's name, the other jobs' are left
    alone. An engine of one job has the line "".
    """

    def __init__(self, config: EngineConfig, shm: Path = SHM) -> None:
        self.config = config
        self._shm = shm
        self._lines = {"": Line("", config.lora)}
        self._client = VllmClient(on_gpu=config.gpus > 0)
        self._admission = FairSlots(config.max_num_seqs + config.max_num_seqs // WAIT_INSIDE)
        self._slots = Slots(config.max_num_seqs)
        self._not_updating = asyncio.Event()
        self._not_updating.set()
        self._request = 0
        self._base = config.model
        self._lora = config.lora
        self.adapters = Adapters(self._client, config.adapter_slots)
        self._updates = WeightUpdates(self._client, self.adapters, self._slots, self._lines, self._not_updating, shm)

    async def start(self) -> None:
        """Load the model (about 20 s on two cores) and generate a few tokens, so that nothing is compiled later.

        If this raises, the engine is shut down.

        Raises:
            EngineFailed: vLLM cannot start.
            UserError: The model is an adapter of a kind that is not supported.
        """
        try:
            await self._start()
        except BaseException:  # on cancellation too, so that no process is left behind
            self.shutdown()
            raise

    async def _start(self) -> None:
        config = self.config
        set_environment(config)
        adapter = AdapterFolder.read(Path(config.model))
        if adapter is not None:
            self._base, self._lora = str(adapter.base), config.lora or adapter.config
        args = engine_args(config, self._base, self._lora, adapter)
        remove_leftovers(self._shm)
        with as_engine_failed("start"):
            self._client.connect(vllm_config(args, config), config.log_stats)
            unname_shared_memory()
            await self._client.llm.update_weight_version("0")
            if self._lora is not None:
                await self._client.llm.collective_rpc("prepare_adapters")
            self._lines[""].lora = self._lora
            if adapter is not None:
                await self._updates.load_adapter(self._lines[""], 0, adapter.path)
            if config.reports_experts and config.gpus == 0:
                await self._client.llm.collective_rpc("log_experts", args=(LOGS_PER_SLOT * config.max_num_seqs,))
        await self.generate([1] * 4, max_tokens=WARM_UP_TOKENS, seed=0, temperature=1.0)

    async def generate(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        seed: int,
        temperature: float,
        stop_token_ids: Sequence[int] = (),
        structure: str | None = None,
        max_thinking_tokens: int | None = None,
        order: int = 0,
        job: str = "",
    ) -> Completion:
        """Sample one completion of `prompt` (token ids); temperature 0 is greedy, for comparisons only.

        A `structure` (see `agent_rft.actors.engine.grammar.structure`) limits thoughts itself. While the engine is
        full, requests of a job start by `order`, the lowest first.

        Raises:
            EngineFailed: the engine died or returned nothing.
        """
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

        params = SamplingParams(
            temperature=temperature,
            top_p=1.0,
            top_k=0,
            seed=seed,
            max_tokens=max_tokens,
            logprobs=0,
            stop_token_ids=list(stop_token_ids),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            structured_outputs=StructuredOutputsParams(structural_tag=structure) if structure else None,
            thinking_token_budget=None if structure else max_thinking_tokens,
            skip_clone=True,
        )
        line, output = self._line(job), None
        async with self._admission.slot(job, order):
            while output is None or output.finish_reason == "abort":  # by an update before it started, or by `sleep`
                await self._not_updating.wait()
                paused = self._updates.paused_s
                with self._slots.take(self._next_request_id()) as slot:
                    version = line.version
                    output = (await self._run(slot.request_id, list(prompt), params, line)).outputs[0]
                    experts = await self._experts(slot.request_id, output, len(prompt))
            model_s = time.monotonic() - slot.started - (self._updates.paused_s - paused)
        token_ids = list(output.token_ids)
        logprobs = np.fromiter(
            (p[t].logprob for p, t in zip(output.logprobs, token_ids, strict=True)), dtype=np.float32
        )
        versions = np.full(len(token_ids), version, dtype=np.int32)
        if self._lora is None:
            for span in output.weight_versions or []:
                versions[span.start : span.end] = int(span.version)
        line.sampled_tokens += len(token_ids)
        return Completion(token_ids, logprobs, versions, output.finish_reason == "stop", max(0.0, model_s), experts)

    async def _experts(self, request_id: str, output: Any, num_prompt: int) -> NDArray[np.integer[Any]] | None:
        """The experts chosen in a request that has ended; None if it was aborted, or the engine reports none."""
        if not self.config.reports_experts or output.finish_reason == "abort":
            return None
        if self.config.gpus > 0:
            found: NDArray[np.integer[Any]] | None = output.routed_experts
        else:
            with as_engine_failed("say which experts it chose"):
                [taken] = await self._client.while_alive(
                    self._client.llm.collective_rpc("take_experts", args=(request_id,))
                )
            found = None if taken is None else np.frombuffer(taken[0], taken[1]).reshape(taken[2])
        num_computed = num_prompt + len(output.token_ids) - 1
        if found is None or len(found) < num_computed:
            raise EngineFailed("an engine does not know which experts it chose")
        return found[:num_computed]

    async def prompt_logprobs(self, token_ids: Sequence[int], job: str = "") -> NDArray[np.float32]:
        """Log-probabilities at temperature 1 of each token but the first, given those before it: [T] -> [T-1]."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(
            temperature=1.0, max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        await self._not_updating.wait()
        final = await self._run(self._next_request_id(), list(token_ids), params, self._line(job))
        prompt_logprobs = final.prompt_logprobs
        pairs = zip(prompt_logprobs[1:], token_ids[1:], strict=True)
        return np.fromiter((entry[token].logprob for entry, token in pairs), dtype=np.float32)

    def _next_request_id(self) -> str:
        self._request += 1
        return f"r{self._request}"

    async def _run(self, request_id: str, prompt: list[int], params: Any, line: Line) -> Any:
        request = tokens_request(prompt, line.salt)
        newest, final = line.adapter, None
        with as_engine_failed("run a request"), nullcontext() if newest is None else self.adapters.used(newest) as lora:
            async for output in self._client.llm.generate(request, params, request_id, lora_request=lora):
                final = output
        if final is None or not final.finished:
            raise EngineFailed("the engine ended a request without an answer")
        return final

    # -- weights -------------------------------------------------------------------------------------------------------

    async def init_transport(self, info: dict[str, Any]) -> None:
        """Connect the weight transport: `info` has the fields of the transport's init info, empty for shared memory."""
        await self._updates.init_transport(info)

    def stage(self, data: NDArray[np.uint8], layout: Layout, job: str = "") -> None:
        """Put one bucket into shared memory while generation goes on.

        Raises:
            EngineFailed: shared memory is full or missing.
        """
        self._line(job).stage(self._shm, data, layout)

    async def swap(self, version: int, job: str = "") -> Loaded:
        """Load all staged buckets as `version`."""
        return await self._updates.swap(self._line(job), version, self._base)

    async def update(self, version: int, updates: Sequence[dict[str, Any]]) -> Loaded:
        """Pause, load each of `updates` as `version`, and resume."""
        return await self._updates.update(version, updates)

    # -- turns ---------------------------------------------------------------------------------------------------------

    async def sleep(self) -> None:
        """Give the memory of the GPUs back; on a CPU, only pause.

        Requests in flight begin again after `wake`, with their seeds, since their cache is gone.
        """
        self._not_updating.clear()
        with as_engine_failed("sleep"):
            await self._client.sleep()

    async def wake(self) -> None:
        """Take the memory of the GPUs again, with the weights of before and an empty cache."""
        with as_engine_failed("wake up"):
            await self._client.wake()
        self._not_updating.set()

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def _line(self, job: str) -> Line:
        if job not in self._lines:
            raise EngineFailed("an engine has given up its line of this job, which was silent for too long")
        return self._lines[job]

    async def open(self, job: str, lora: AdapterConfig, adapter: Path | None) -> None:
        """Begin the line of a job that trains adapters of this shape; version 0 is the one in a folder, or the base."""
        line = self._lines[job] = Line(job, lora)
        if adapter is not None:
            with as_engine_failed("load an adapter"):
                await self._updates.load_adapter(line, 0, adapter)

    def close(self, job: str) -> None:
        """End a job's line: it gets no further requests, and its adapter goes after the last one."""
        line = self._lines.pop(job)
        line.unstage()
        self._updates.release_adapter(line)

    @property
    def version(self) -> int:
        return self._lines[""].version

    @property
    def sampled_tokens(self) -> int:
        return self._lines[""].sampled_tokens

    @property
    def busy_s(self) -> float:
        """Seconds since the start for which it had requests to run."""
        return self._slots.busy_s

    def live(self, job: str = "") -> dict[str, float]:
        """The current state of a job's line, under the names of `agent_rft.metrics`."""
        line, (inside, waiting) = self._line(job), self._admission.of(job)
        used = min(inside, self._slots.count)
        return {
            "engine_slots": float(self._slots.count),
            "engine_slots_used": float(used),
            "engine_waiting": float(waiting + inside - used),
            "engine_sampled_tokens": float(line.sampled_tokens),
            "engine_version": float(line.version),
        }

    @property
    def client(self) -> Any:
        """The AsyncLLM, for vLLM's own serving layer; only for engines whose weights are never updated."""
        return self._client.llm

    async def check_health(self) -> None:
        """Return when the engine's core has answered a call; if it hangs, this never returns.

        Raises:
            EngineFailed: the engine died.
        """
        with as_engine_failed("answer"):
            await self._client.while_alive(self._client.llm.is_sleeping())  # any call without side effects

    def shutdown(self) -> None:
        """Stop vLLM's processes, close the connections to them and remove staged buckets from shared memory.

        Call it in the thread of the engine's event loop. A second call does nothing.
        """
        for line in self._lines.values():
            line.unstage()
        self._client.close()
