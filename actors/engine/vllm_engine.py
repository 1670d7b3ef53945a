"""One vLLM engine: tokens in, tokens out, each sampled token with its log-probability and its policy version.

A request never reuses cache blocks of older weights (its cache salt is the version). During an update of all weights no
request starts, and those in flight continue with the new ones; during one of an adapter they start as ever, and
those in flight end with the adapter with which they began.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from agent_rft.actors.engine.adapters import Adapter, Adapters
from agent_rft.actors.engine.failures import EngineDied, as_engine_failed
from agent_rft.actors.engine.lines import Line
from agent_rft.actors.engine.plugin import TRANSPORT, WORKER_EXTENSION
from agent_rft.actors.engine.sizes import (
    GPU_MEMORY_SHARE,
    MIN_BATCHED_TOKENS,
    TRAINED_ADAPTERS,
    WAIT_INSIDE,
    cpu_cache_bytes,
    kv_bytes,
    slot_rank,
)
from agent_rft.actors.engine.slots import Slots
from agent_rft.actors.engine.vllm_internals import create_client, shut_down
from agent_rft.actors.runtime.fair_slots import FairSlots
from agent_rft.actors.weights.adapter import AdapterConfig, AdapterFolder, write_adapter
from agent_rft.actors.weights.layout import Layout, Loaded, num_bytes
from agent_rft.actors.weights.shared_memory import SHM, remove_leftovers, shared_folder, unname_shared_memory
from agent_rft.actors.weights.start_timeout import start_timeout_s
from agent_rft.errors import EngineFailed

CPU_EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Runs the model in the engine core's own process. vLLM's default on CPUs is a worker process, and polling it takes
half a core. On CPUs vLLM rejects the short name "uni". The number of threads is OMP_NUM_THREADS, which Ray sets."""


def executor_of(gpus: int) -> str:
    """How vLLM runs an engine's workers.

    With several GPUs vLLM would choose Ray by default, because the engine's actor is in a placement group, and would
    wait forever for GPUs in it: this actor has them all.
    """
    if gpus == 0:
        return CPU_EXECUTOR
    return "uni" if gpus == 1 else "mp"


CPU_BLOCK_TOKENS = 32
"""Tokens of a cache block, the smallest that vLLM's attention takes on CPUs. Only whole blocks are found again, so with
its default there, 128, most prompts of small models were computed again in each turn of each rollout."""

KEEP_WEIGHTS, ONLY_PAUSE = 1, 0
"""vLLM's levels of sleep: 1 moves the weights to the node's memory and discards the cache, 0 does neither."""

Result = TypeVar("Result")

WARM_UP_TOKENS = 8
LOGS_PER_SLOT = 4
"""Requests whose experts are kept, for each that runs at once; they are taken as soon as a request has ended."""
LIFE_POLL_S = 0.5
SHUTDOWN_S = 5.0
"""Time for vLLM's processes to end before they are killed."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The configuration of one engine.

    `model` may be the folder of an adapter, which then is version 0 on its base. `gpus` is its tensor-parallel size, 0
    on a CPU. `thought_marks` open and close a thought, if the model has such tokens; `max_thinking_tokens` needs them.
    `log_stats` enables vLLM's own metrics. `gpu_share` is the share of each GPU's memory that it takes. An engine that
    `sleeps` can give it back for a while. With `lora` the engine has `adapter_slots`, each for an adapter of at most
    its rank, and an update brings an adapter instead of all weights. With `reports_experts` its completions have the
    experts that the layers of a mixture of experts chose.
    """

    model: str
    dtype: str
    context_length: int
    max_num_seqs: int
    seed: int
    gpus: int = 0
    transport: str = TRANSPORT
    thought_marks: tuple[str, str] | None = None
    log_stats: bool = False
    lora: AdapterConfig | None = None
    adapter_slots: int = TRAINED_ADAPTERS
    gpu_share: float = GPU_MEMORY_SHARE
    sleeps: bool = False
    reports_experts: bool = False


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
        self._llm: Any = None
        self._admission = FairSlots(config.max_num_seqs + config.max_num_seqs // WAIT_INSIDE)
        self._slots = Slots(config.max_num_seqs)
        self._not_updating = asyncio.Event()
        self._not_updating.set()
        self._paused_s = 0.0
        self._request = 0
        self._base = config.model
        self._lora = config.lora
        self.adapters = Adapters(self, config.adapter_slots)

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
        c = self.config
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        # By default vLLM gives up after 600 s. The fleet has a timeout of its own, with a better message.
        os.environ.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", str(math.ceil(start_timeout_s(Path(c.model)))))
        if c.gpus == 0:  # skips seconds of compilation, which gains nothing on CPUs
            os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        from vllm.config.reasoning import ReasoningConfig
        from vllm.config.weight_transfer import WeightTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs

        reasoning = None
        if c.thought_marks is not None:
            start, end = c.thought_marks
            reasoning = ReasoningConfig(reasoning_start_str=start, reasoning_end_str=end)
        adapter = AdapterFolder.read(Path(c.model))
        if adapter is not None:
            self._base, self._lora = str(adapter.base), c.lora or adapter.config
        args = AsyncEngineArgs(
            model=self._base,
            dtype=c.dtype,
            max_model_len=c.context_length,
            max_num_seqs=c.max_num_seqs,
            max_num_batched_tokens=max(MIN_BATCHED_TOKENS, c.context_length),
            seed=c.seed,
            enforce_eager=c.gpus == 0,
            # Between the chunks of a prompt vLLM rewinds a seeded request's generator, which crashes it on CPUs.
            enable_chunked_prefill=c.gpus > 0,
            tensor_parallel_size=max(1, c.gpus),
            distributed_executor_backend=executor_of(c.gpus),
            gpu_memory_utilization=c.gpu_share,
            enable_sleep_mode=c.sleeps and c.gpus > 0,
            enable_prefix_caching=True,
            block_size=CPU_BLOCK_TOKENS if c.gpus == 0 else None,
            # The learner divides its logits by the temperature; so must the engine's log-probabilities.
            logprobs_mode="processed_logprobs",
            generation_config="vllm",
            disable_log_stats=not c.log_stats,
            weight_transfer_config=WeightTransferConfig(backend=c.transport),
            worker_extension_cls=WORKER_EXTENSION,
            reasoning_config=reasoning,
            enable_return_routed_experts=c.reports_experts and c.gpus > 0,  # vLLM does so on GPUs only
            **self._slots_for(adapter),
        )
        remove_leftovers(self._shm)
        with as_engine_failed("start"):
            if c.gpus == 0 and args.create_model_config().is_hybrid:
                args.enable_prefix_caching = False  # of layers with a state it needs chunked prefill
            config = args.create_engine_config()
            if c.gpus == 0:
                model = config.model_config
                layers, kv_heads = model.get_total_num_hidden_layers(), model.get_total_num_kv_heads()
                token = kv_bytes(layers, kv_heads, model.get_head_size(), model.dtype.itemsize)
                config.cache_config.kv_cache_memory_bytes = cpu_cache_bytes(c.max_num_seqs, c.context_length, token)
            self._llm = create_client(config, c.log_stats)
            unname_shared_memory()
            await self._llm.update_weight_version("0")
            if self._lora is not None:
                await self._llm.collective_rpc("prepare_adapters")
            self._lines[""].lora = self._lora
            if adapter is not None:
                await self._updated(self._lines[""], 0, adapter.path)
            if c.reports_experts and c.gpus == 0:
                await self._llm.collective_rpc("log_experts", args=(LOGS_PER_SLOT * c.max_num_seqs,))
        await self.generate([1] * 4, max_tokens=WARM_UP_TOKENS, seed=0, temperature=1.0)

    def _slots_for(self, adapter: AdapterFolder | None) -> dict[str, Any]:
        """The arguments of vLLM that make slots for this adapter and later ones."""
        if self._lora is None:
            return {}
        rank = self._lora.rank if adapter is None else max(self._lora.rank, adapter.config.rank)
        slots = self.config.adapter_slots
        return {"enable_lora": True, "max_lora_rank": slot_rank(rank), "max_loras": slots, "max_cpu_loras": slots}

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
                paused = self._paused_s
                with self._slots.take(self._next_request_id()) as slot:
                    version = line.version
                    output = (await self._run(slot.request_id, list(prompt), params, line)).outputs[0]
                    experts = await self._experts(slot.request_id, output, len(prompt))
            model_s = time.monotonic() - slot.started - (self._paused_s - paused)
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
                [taken] = await self._while_alive(self._llm.collective_rpc("take_experts", args=(request_id,)))
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
        from vllm.inputs.engine import tokens_input

        request = tokens_input(prompt, cache_salt=line.salt)
        newest, final = line.adapter, None
        with as_engine_failed("run a request"), nullcontext() if newest is None else self.adapters.used(newest) as lora:
            async for output in self._llm.generate(request, params, request_id, lora_request=lora):
                final = output
        if final is None or not final.finished:
            raise EngineFailed("the engine ended a request without an answer")
        return final

    # -- weights -------------------------------------------------------------------------------------------------------

    async def init_transport(self, info: dict[str, Any]) -> None:
        """Connect the weight transport: `info` has the fields of the transport's init info, empty for shared memory."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        with as_engine_failed("connect to the learner"):
            await self._while_alive(self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=info)))

    def stage(self, data: NDArray[np.uint8], layout: Layout, job: str = "") -> None:
        """Put one bucket into shared memory while generation goes on.

        Raises:
            EngineFailed: shared memory is full or missing.
        """
        self._line(job).stage(self._shm, data, layout)

    async def swap(self, version: int, job: str = "") -> Loaded:
        """Load all staged buckets as `version`."""
        line = self._line(job)
        try:
            if line.lora is not None:
                return await self._adapt(line, version, line.lora)
            updates = [
                {"path": str(file.path), "tensors": [list(tensor) for tensor in layout], "checksum": checksum}
                for file, layout, checksum in line.staged
            ]
            return await self.update(version, updates)
        finally:
            line.unstage()

    async def update(self, version: int, updates: Sequence[dict[str, Any]]) -> Loaded:
        """Pause, load each of `updates` as `version`, and resume; then ask the workers what they loaded."""
        started = time.monotonic()
        self._not_updating.clear()
        try:
            with as_engine_failed("load weights"):
                await self._while_alive(self._update(version, updates))
        finally:
            pause = time.monotonic() - started
            self._paused_s += pause
            self._not_updating.set()
        with as_engine_failed("say which weights it loaded"):
            reports = await self._while_alive(self._llm.collective_rpc("loaded_weights"))
        missed = {name for _, names in reports for name in names}
        return Loaded(pause, tuple(number for number, _ in reports), tuple(sorted(missed)))

    async def _update(self, version: int, updates: Sequence[dict[str, Any]]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        # Waiting requests are restarted after the update: with their old salt they could use blocks of older weights.
        await self._llm.abort(self._slots.waiting)
        # The cache is kept for requests in flight; later ones cannot hit it, because their salt differs. This calls the
        # core directly: AsyncLLM.pause_generation also sleeps for 20 ms, only to order its outputs.
        await self._llm.engine_core.pause_scheduler_async(mode="keep", clear_cache=False)
        await self._llm.start_weight_update()
        for update in updates:
            await self._llm.update_weights(WeightTransferUpdateRequest(update_info=update))
        await self._llm.finish_weight_update(weight_version=str(version))
        self._lines[""].version = version
        await self._llm.resume_generation()

    async def _adapt(self, line: Line, version: int, lora: AdapterConfig) -> Loaded:
        """Load the staged tensors as an adapter, which all later requests use."""
        from agent_rft.actors.weights.transport import bytes_of, tensors_in

        tensors = {
            name: tensor
            for file, layout, _ in line.staged
            for name, tensor in tensors_in(bytes_of(file.path, num_bytes(layout)), layout)
        }
        layouts = [layout for _, layout, _ in line.staged]
        with as_engine_failed("load an adapter"), shared_folder(self._shm) as folder:
            await asyncio.to_thread(write_adapter, folder, tensors, lora.config(self._base))
            adapter = await self._updated(line, version, folder)
            call = self._llm.collective_rpc("adapter_checksum", args=(str(folder), layouts))
            return Loaded(adapter.load_s, tuple(await self._while_alive(call)))

    async def _updated(self, line: Line, version: int, folder: Path) -> Adapter:
        adapter = await self.adapters.update(f"{line.job} version {version}".lstrip(), folder)
        before, line.adapter, line.version = line.adapter, adapter, version
        if before is not None:
            self.adapters.give_up(before)
        if self._lines.get(line.job) is not line:
            self._without_adapter(line)  # it was closed meanwhile
        return adapter

    def _without_adapter(self, line: Line) -> None:
        if line.adapter is not None:
            self.adapters.give_up(line.adapter)
            line.adapter = None

    async def add_lora(self, request: Any) -> bool:
        """Load an adapter, all of it.

        Raises:
            ValueError: The model lacks a module that the adapter changes, which vLLM would leave out.
        """
        added: bool = await self._while_alive(self._llm.add_lora(request))
        call = self._llm.collective_rpc("missing_modules", args=(request.lora_int_id,))
        if missing := sorted({name for names in await self._while_alive(call) for name in names}):
            raise ValueError(f"the model has no {', '.join(missing[:3])}, which the adapter changes")
        return added

    async def remove_lora(self, lora_id: int) -> bool:
        return await self._while_alive(self._llm.remove_lora(lora_id))

    # -- turns ---------------------------------------------------------------------------------------------------------

    async def sleep(self) -> None:
        """Give the memory of the GPUs back; on a CPU, only pause.

        Requests in flight begin again after `wake`, with their seeds, since their cache is gone.
        """
        self._not_updating.clear()
        with as_engine_failed("sleep"):
            await self._while_alive(self._llm.sleep(level=KEEP_WEIGHTS if self.config.gpus else ONLY_PAUSE))

    async def wake(self) -> None:
        """Take the memory of the GPUs again, with the weights of before and an empty cache."""
        with as_engine_failed("wake up"):
            await self._while_alive(self._llm.wake_up(None if self.config.gpus else ["scheduling"]))
        self._not_updating.set()

    async def _while_alive(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work`, and fail if the engine dies: vLLM never answers pending calls other than requests then."""
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait({task}, timeout=LIFE_POLL_S))[0]:
                if self._llm.errored:
                    raise EngineDied
            return task.result()
        finally:
            task.cancel()

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
                await self._updated(line, 0, adapter)

    def close(self, job: str) -> None:
        """End a job's line: it gets no further requests, and its adapter goes after the last one."""
        line = self._lines.pop(job)
        line.unstage()
        self._without_adapter(line)

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
        return self._llm

    async def check_health(self) -> None:
        """Return when the engine's core has answered a call; if it hangs, this never returns.

        Raises:
            EngineFailed: the engine died.
        """
        with as_engine_failed("answer"):
            await self._while_alive(self._llm.is_sleeping())  # any call without side effects

    def shutdown(self) -> None:
        """Stop vLLM's processes, close the connections to them and remove staged buckets from shared memory.

        Call it in the thread of the engine's event loop. A second call does nothing.
        """
        for line in self._lines.values():
            line.unstage()
        if self._llm is not None:
            shut_down(self._llm, SHUTDOWN_S)
            self._llm = None
