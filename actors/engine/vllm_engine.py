"""One vLLM engine: tokens in, tokens out, each sampled token with its log-probability and its policy version.

A request never reuses cache blocks of older weights (its cache salt is the version), requests in flight during an
update continue with the new weights, and no request starts while weights change.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from actors.engine.plugin import TRANSPORT, WORKER_EXTENSION
from actors.engine.sizes import GPU_MEMORY_SHARE, MIN_BATCHED_TOKENS, WAIT_INSIDE, cpu_cache_bytes, kv_bytes
from actors.engine.slots import Slots
from actors.weights.layout import Layout, Loaded
from actors.weights.shared_memory import SHM, SharedFile, remove_leftovers, unname_shared_memory
from trainer.errors import EngineFailed

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

Result = TypeVar("Result")

WARM_UP_TOKENS = 8
LIFE_POLL_S = 0.5
LOGS = (Path("/proc/self/fd/1"), Path("/proc/self/fd/2"))
"""Ray's log files of the worker: vLLM's own log has the errors of its processes, and Python writes those at a start."""
LOG_TAIL_BYTES = 1 << 16
ERROR_LINE = re.compile(
    r"^(?:\(\w+ pid=\d+\) ERROR .*?\] )?(?:[\w.]+\.)?(?!EngineDeadError)(\w+(?:Error|Exception): .+)$", re.M
)
"""An EngineDeadError only says that another line has the cause."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The configuration of one engine.

    `gpus` is its tensor-parallel size, 0 on a CPU. `thought_marks` open and close a thought, if the model has such
    tokens; `max_thinking_tokens` needs them. `log_stats` enables vLLM's own metrics.
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


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion.

    `logprobs` and `versions` are [T], one entry per token of `token_ids`. `model_s` is its time in the engine, without
    waiting for a slot and without pauses. `stopped` says that an end token (the last of `token_ids`) ended it.
    """

    token_ids: list[int]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    stopped: bool
    model_s: float


class _Admission(asyncio.Semaphore):
    """A semaphore that counts its waiters."""

    waiting = 0

    async def acquire(self) -> Literal[True]:
        self.waiting += 1
        try:
            return await super().acquire()
        finally:
            self.waiting -= 1


class Engine:
    """Wraps vLLM's AsyncLLM. All methods run on one event loop."""

    def __init__(self, config: EngineConfig, shm: Path = SHM) -> None:
        self.config = config
        self._shm = shm
        self.version = 0
        self.sampled_tokens = 0
        self._llm: Any = None
        self._admission = _Admission(config.max_num_seqs + config.max_num_seqs // WAIT_INSIDE)
        self._slots = Slots(config.max_num_seqs)
        self._not_updating = asyncio.Event()
        self._not_updating.set()
        self._paused_s = 0.0
        self._request = 0
        self._staged: list[tuple[SharedFile, Layout, int]] = []

    async def start(self) -> None:
        """Load the model (about 20 s on two cores) and generate a few tokens, so that nothing is compiled later.

        Raises:
            EngineFailed: vLLM cannot start.
        """
        c = self.config
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        if c.gpus == 0:  # skips seconds of compilation, which gains nothing on CPUs
            os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        from vllm.config.reasoning import ReasoningConfig
        from vllm.config.weight_transfer import WeightTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        reasoning = None
        if c.thought_marks is not None:
            start, end = c.thought_marks
            reasoning = ReasoningConfig(reasoning_start_str=start, reasoning_end_str=end)
        args = AsyncEngineArgs(
            model=c.model,
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
            gpu_memory_utilization=GPU_MEMORY_SHARE,
            enable_prefix_caching=True,
            block_size=CPU_BLOCK_TOKENS if c.gpus == 0 else None,
            # The learner divides its logits by the temperature; so must the engine's log-probabilities.
            logprobs_mode="processed_logprobs",
            generation_config="vllm",
            disable_log_stats=not c.log_stats,
            weight_transfer_config=WeightTransferConfig(backend=c.transport),
            worker_extension_cls=WORKER_EXTENSION,
            reasoning_config=reasoning,
        )
        remove_leftovers(self._shm)
        with _as_engine_failed("start"):
            config = args.create_engine_config()
            if c.gpus == 0:
                model = config.model_config
                layers, kv_heads = model.get_total_num_hidden_layers(), model.get_total_num_kv_heads()
                token = kv_bytes(layers, kv_heads, model.get_head_size(), model.dtype.itemsize)
                config.cache_config.kv_cache_memory_bytes = cpu_cache_bytes(c.max_num_seqs, c.context_length, token)
            self._llm = AsyncLLM.from_vllm_config(config, disable_log_stats=not c.log_stats)
            unname_shared_memory()
            await self._llm.update_weight_version("0")
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
    ) -> Completion:
        """Sample one completion of `prompt` (token ids); temperature 0 is greedy, for comparisons only.

        A `structure` (see `actors.engine.structure`) limits thoughts itself.

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
        output = None
        async with self._admission:
            while output is None or output.finish_reason == "abort":  # aborted by an update before it started
                await self._not_updating.wait()
                paused = self._paused_s
                with self._slots.take(self._next_request_id()) as slot:
                    output = (await self._run(slot.request_id, list(prompt), params)).outputs[0]
            model_s = time.monotonic() - slot.started - (self._paused_s - paused)
        token_ids = list(output.token_ids)
        logprobs = np.fromiter(
            (p[t].logprob for p, t in zip(output.logprobs, token_ids, strict=True)), dtype=np.float32
        )
        versions = np.empty(len(token_ids), dtype=np.int32)
        for span in output.weight_versions or []:
            versions[span.start : span.end] = int(span.version)
        self.sampled_tokens += len(token_ids)
        return Completion(token_ids, logprobs, versions, output.finish_reason == "stop", max(0.0, model_s))

    async def prompt_logprobs(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Log-probabilities at temperature 1 of each token but the first, given those before it: [T] -> [T-1]."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(
            temperature=1.0, max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        await self._not_updating.wait()
        prompt_logprobs = (await self._run(self._next_request_id(), list(token_ids), params)).prompt_logprobs
        pairs = zip(prompt_logprobs[1:], token_ids[1:], strict=True)
        return np.fromiter((entry[token].logprob for entry, token in pairs), dtype=np.float32)

    def _next_request_id(self) -> str:
        self._request += 1
        return f"r{self._request}"

    async def _run(self, request_id: str, prompt: list[int], params: Any) -> Any:
        from vllm.inputs.engine import tokens_input

        request = tokens_input(prompt, cache_salt=str(self.version))
        final = None
        with _as_engine_failed("run a request"):
            async for output in self._llm.generate(request, params, request_id):
                final = output
        if final is None or not final.finished:
            raise EngineFailed("the engine ended a request without an answer")
        return final

    # -- weights -------------------------------------------------------------------------------------------------------

    async def init_transport(self, info: dict[str, Any]) -> None:
        """Connect the weight transport: `info` has the fields of the transport's init info, empty for shared memory."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        with _as_engine_failed("connect to the learner"):
            await self._while_alive(self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=info)))

    def stage(self, data: NDArray[np.uint8], layout: Layout) -> None:
        """Put one bucket into shared memory while generation goes on, and take the checksum of what is there.

        Raises:
            EngineFailed: shared memory is full or missing.
        """
        import torch

        from actors.weights.checksum import checksum

        try:
            file = SharedFile(self._shm, data)
        except OSError as error:
            what = f"cannot put {data.nbytes} bytes of weights into"
            raise EngineFailed(f"{what} {self._shm}: {error}", public=f"{what} shared memory") from error
        written = torch.from_file(str(file.path), size=data.nbytes, dtype=torch.uint8)
        self._staged.append((file, layout, checksum(written)))

    async def swap(self, version: int) -> Loaded:
        """Load all staged buckets as `version`."""
        updates = [
            {"path": str(file.path), "tensors": [list(tensor) for tensor in layout], "checksum": checksum}
            for file, layout, checksum in self._staged
        ]
        try:
            return await self.update(version, updates)
        finally:
            self.unstage()

    def unstage(self) -> None:
        """Discard the staged buckets."""
        for file, *_ in self._staged:
            file.remove()
        self._staged = []

    async def update(self, version: int, updates: Sequence[dict[str, Any]]) -> Loaded:
        """Pause, load each of `updates` as `version`, and resume; then ask the workers what they loaded."""
        started = time.monotonic()
        self._not_updating.clear()
        try:
            with _as_engine_failed("load weights"):
                await self._while_alive(self._update(version, updates))
        finally:
            pause = time.monotonic() - started
            self._paused_s += pause
            self._not_updating.set()
        with _as_engine_failed("say which weights it loaded"):
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
        self.version = version
        await self._llm.resume_generation()

    async def _while_alive(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work`, and fail if the engine dies: vLLM never answers pending calls other than requests then."""
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait({task}, timeout=LIFE_POLL_S))[0]:
                if self._llm.errored:
                    raise _EngineDied
            return task.result()
        finally:
            task.cancel()

    def live(self) -> dict[str, float]:
        """The engine's current state, under the names of `trainer.metrics`."""
        return {
            "engine_slots": float(self._slots.count),
            "engine_slots_used": float(self._slots.used),
            "engine_waiting": float(len(self._slots.waiting) + self._admission.waiting),
            "engine_sampled_tokens": float(self.sampled_tokens),
            "engine_version": float(self.version),
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
        with _as_engine_failed("answer"):
            await self._while_alive(self._llm.is_sleeping())  # any call without side effects

    def shutdown(self) -> None:
        """Stop vLLM's processes and leave nothing in shared memory."""
        self.unstage()
        if self._llm is not None:
            self._llm.shutdown(timeout=5)
            self._llm = None


class _EngineDied(Exception):
    """The engine's process ended; its log says why."""


@contextmanager
def _as_engine_failed(what: str) -> Iterator[None]:
    """Map vLLM's errors to EngineFailed."""
    try:
        yield
    except Exception as error:  # of any class: they come from vLLM's own processes
        why = f"{type(error).__name__}: {error}"
        # vLLM has no class of its own for a start that failed: "See root cause above", in the log.
        if isinstance(error, _EngineDied) or "root cause" in why:
            why = next(filter(None, map(last_error, LOGS)), None) or "its process ended (killed, or out of memory)"
        raise EngineFailed(f"an engine could not {what}: {why}", public=f"an engine could not {what}") from error


def last_error(log: Path) -> str | None:
    """The last error in a log, by Python or vLLM, such as "ValueError: ..."; None if there is no file or no error."""
    if not log.is_file():
        return None
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
        found = ERROR_LINE.findall(file.read().decode(errors="replace"))
    return found[-1] if found else None
