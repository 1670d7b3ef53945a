"""One vLLM engine: samples tokens and returns each with its log-probability and policy version.

A request never reuses cache blocks of older weights, because its cache salt contains the policy version. During an
update of all weights, no request starts. Requests in flight that have a token continue with the new weights, and the
others start again. During an update of an adapter, requests start as usual, and requests in flight finish with the
adapter with which they started.
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

from agent_rft.actors.engine.adapters import Adapters, EngineTenant
from agent_rft.actors.engine.engine_config import EngineConfig, build_engine_args, build_vllm_config, set_environment
from agent_rft.actors.engine.engine_memory import SLOTS_PER_WAITING_REQUEST
from agent_rft.actors.engine.request_slots import RequestSlots
from agent_rft.actors.engine.vllm_client import VllmClient
from agent_rft.actors.engine.vllm_errors import as_engine_failed
from agent_rft.actors.engine.vllm_internals import make_tokens_request
from agent_rft.actors.engine.weight_updates import WeightUpdates
from agent_rft.actors.runtime.fair_slots import FairSlots
from agent_rft.actors.weights.shared_memory import SHM, remove_leftovers, unlink_shared_memory
from agent_rft.errors import EngineFailed
from agent_rft.trainer.learner.adapter import AdapterConfig, AdapterFolder
from agent_rft.trainer.learner.weight_buckets import BucketLayout, WeightLoadResult

WARM_UP_TOKENS = 8
LOGS_PER_SLOT = 4
"""Number of requests that `ExpertLog` keeps for each engine slot."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Tokens that an engine sampled for one request.

    Attributes:
        token_ids: The sampled tokens.
        logprobs: [T], the log-probability of each sampled token.
        versions: [T], the policy version of each sampled token.
        stopped: Whether the completion ended with a stop token, which is then the last of `token_ids`.
        model_s: Seconds in the engine, not counting pauses and the wait for a slot.
        experts: [P + T - 1, L, k], the k experts that each of L layers chose for each of the P prompt tokens and the
            first T - 1 sampled tokens; 0 in layers without experts. None if the engine does not report experts.
    """

    token_ids: list[int]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    stopped: bool
    model_s: float
    experts: NDArray[np.integer[Any]] | None = None


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities [T-1] at temperature 1 of all tokens of a prompt [T], except the first.

    `experts` [T, L, k] are the experts that each of L layers chose for each token; None if the engine does not report
    experts.
    """

    logprobs: NDArray[np.float32]
    experts: NDArray[np.integer[Any]] | None = None


def _read_logprobs(flat: Any, token_ids: Sequence[int], first: int = 0) -> NDArray[np.float32]:
    """Return the log-probabilities of `token_ids`, the tokens of a request at the positions from `first` on.

    `flat` is vLLM's FlatLogprobs. At each position, it has the request's own token before the most likely tokens.

    Raises:
        EngineFailed: The engine returned log-probabilities of other tokens.
    """
    starts = flat.start_indices[first:]
    if [flat.token_ids[start] for start in starts] != list(token_ids):
        raise EngineFailed("an engine returned log-probabilities of other tokens than it sampled or read")
    return np.array([flat.logprobs[start] for start in starts], dtype=np.float32)


class Engine:
    """One vLLM engine, which runs vLLM's AsyncLLM. Call all coroutines on the same event loop.

    A shared engine has a tenant for each job. A method with the parameter `job` acts only for this job's tenant. A
    dedicated engine has a single tenant, whose job is "".
    """

    def __init__(self, config: EngineConfig, shm: Path = SHM) -> None:
        self.config = config
        self._shm = shm
        self._tenants = {"": EngineTenant("", config.lora)}
        self._client = VllmClient(on_gpu=config.gpus > 0)
        self._admission = FairSlots(config.max_num_seqs + config.max_num_seqs // SLOTS_PER_WAITING_REQUEST)
        self._slots = RequestSlots(config.max_num_seqs)
        self._not_updating = asyncio.Event()
        self._not_updating.set()
        self._lacks_weights = False
        self._num_requests = 0
        self._base = config.model
        self._lora = config.lora
        self.adapters = Adapters(self._client, config.adapter_slots)
        self._updates = WeightUpdates(self._client, self.adapters, self._tenants, self._not_updating, shm)

    async def start(self) -> None:
        """Load the model (about 20 s on two cores) and sample a few tokens, so that nothing is compiled later.

        If this method raises, the engine is shut down.

        Raises:
            EngineFailed: vLLM cannot start.
            UserError: The model is an adapter of an unsupported kind.
        """
        try:
            await self._start_vllm()
        except BaseException:  # on cancellation too, so that no process is left behind
            self.shutdown()
            raise

    async def _start_vllm(self) -> None:
        config = self.config
        set_environment(config)
        adapter = AdapterFolder.read(Path(config.model))
        if adapter is not None:
            self._base, self._lora = str(adapter.base), config.lora or adapter.config
        args = build_engine_args(config, self._base, self._lora, adapter)
        remove_leftovers(self._shm)
        with as_engine_failed("start"):
            self._client.connect(build_vllm_config(args, config), config.log_stats)
            unlink_shared_memory()
            await self._client.llm.update_weight_version("0")
            if self._lora is not None:
                await self._client.llm.collective_rpc("prepare_adapters")
            self._tenants[""].lora = self._lora
            if adapter is not None:
                await self._updates.load_adapter(self._tenants[""], 0, adapter.path)
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
        max_reasoning_tokens: int | None = None,
        order: int = 0,
        job: str = "",
    ) -> Completion:
        """Sample one completion of `prompt`, a list of token ids.

        Temperature 0 samples greedily and is meant only for comparisons. `structure` is a structural tag of
        `agent_rft.actors.engine.grammar.structural_tags`. If it is given, `max_reasoning_tokens` is ignored.
        While the engine is full, requests of a job start in ascending `order`.

        Raises:
            EngineFailed: The engine died, or ended the request without a result.
        """
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

        params = SamplingParams(
            temperature=temperature,
            top_p=1.0,
            top_k=0,
            seed=seed,
            max_tokens=max_tokens,
            logprobs=0,
            flat_logprobs=True,
            stop_token_ids=list(stop_token_ids),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            structured_outputs=StructuredOutputsParams(structural_tag=structure) if structure else None,
            thinking_token_budget=None if structure else max_reasoning_tokens,
            skip_clone=True,
        )
        tenant, output = self._tenant(job), None
        async with self._admission.hold_slot(job, order):
            # An update aborts a request that has no token yet, and `offload` aborts any.
            while output is None or output.finish_reason == "abort":
                await self._not_updating.wait()
                paused = self._updates.paused_s
                with self._slots.take(self._next_request_id()) as slot:
                    version = tenant.version
                    output = (await self._generate_once(slot.request_id, list(prompt), params, tenant)).outputs[0]
                    experts = await self._take_experts(slot.request_id, output, len(prompt))
            model_s = time.monotonic() - slot.started - (self._updates.paused_s - paused)
        token_ids = list(output.token_ids)
        logprobs = _read_logprobs(output.logprobs, token_ids)
        versions = np.full(len(token_ids), version, dtype=np.int32)
        if self._lora is None:
            for span in output.weight_versions or []:
                versions[span.start : span.end] = int(span.version)
        tenant.sampled_tokens += len(token_ids)
        return Completion(token_ids, logprobs, versions, output.finish_reason == "stop", max(0.0, model_s), experts)

    async def _take_experts(self, request_id: str, output: Any, num_prompt: int) -> NDArray[np.integer[Any]] | None:
        """Return the experts chosen in a finished request; None if it was aborted or the engine reports no experts."""
        if not self.config.reports_experts or output.finish_reason == "abort":
            return None
        if self.config.gpus > 0:
            found: NDArray[np.integer[Any]] | None = output.routed_experts
        else:
            with as_engine_failed("return the experts to which the model routed each token"):
                [taken] = await self._client.run_while_alive(
                    self._client.llm.collective_rpc("take_experts", args=(request_id,))
                )
            found = None if taken is None else np.frombuffer(taken[0], taken[1]).reshape(taken[2])
        num_computed = num_prompt + len(output.token_ids) - 1
        if found is None or len(found) < num_computed:
            raise EngineFailed("an engine did not record the experts to which the model routed each token")
        return found[:num_computed]

    async def prompt_logprobs(self, token_ids: Sequence[int], job: str = "") -> NDArray[np.float32]:
        """Return the log-probability at temperature 1 of each token except the first: [T] -> [T-1]."""
        return (await self.score_prompt(token_ids, job)).logprobs

    async def score_prompt(self, token_ids: Sequence[int], job: str = "") -> PromptScores:
        """Return the log-probability of each token except the first, and the experts of all tokens."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(
            temperature=1.0,
            max_tokens=1,
            prompt_logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        await self._not_updating.wait()
        request_id = self._next_request_id()
        final = await self._generate_once(request_id, list(token_ids), params, self._tenant(job))
        experts = await self._take_experts(request_id, final.outputs[0], len(token_ids))
        return PromptScores(_read_logprobs(final.prompt_logprobs, token_ids[1:], first=1), experts)

    def _next_request_id(self) -> str:
        self._num_requests += 1
        return f"r{self._num_requests}"

    async def _generate_once(self, request_id: str, prompt: list[int], params: Any, tenant: EngineTenant) -> Any:
        request = make_tokens_request(prompt, tenant.cache_salt)
        adapter, final = tenant.adapter, None
        with (
            as_engine_failed("run a request"),
            nullcontext() if adapter is None else self.adapters.use(adapter) as lora,
        ):
            async for output in self._client.llm.generate(request, params, request_id, lora_request=lora):
                final = output
        if final is None or not final.finished:
            raise EngineFailed("the engine ended a request without an answer")
        return final

    # -- weights -------------------------------------------------------------------------------------------------------

    async def init_transport(self, info: dict[str, Any]) -> None:
        """Connect the engine to the learner's weight transport.

        `info` contains `address`, `rank` and `size`, or is empty for shared memory.
        """
        await self._updates.init_transport(info)

    def stage_bucket(self, data: NDArray[np.uint8], layout: BucketLayout, job: str = "") -> None:
        """Write one bucket of new weights to shared memory. The engine continues to sample.

        Raises:
            EngineFailed: Shared memory is full or missing.
        """
        self._tenant(job).stage(self._shm, data, layout)

    async def load_staged(self, version: int, job: str = "") -> WeightLoadResult:
        """Load all staged buckets of a job as policy version `version`."""
        loaded = await self._updates.load_staged(self._tenant(job), version, self._base)
        self._lacks_weights = False
        return loaded

    async def load_weights(self, version: int, updates: Sequence[dict[str, Any]]) -> WeightLoadResult:
        """Pause sampling, load all `updates` as policy version `version`, and resume sampling."""
        loaded = await self._updates.load_weights(version, updates)
        self._lacks_weights = False
        return loaded

    # -- time-sharing --------------------------------------------------------------------------------------------------

    async def offload(self, discards: bool = False) -> bool:
        """Free GPU memory, and move the weights to host memory; on CPUs, only pause the engine.

        Requests in flight restart after `reload`, with the same seeds, because their key-value cache is gone.

        With `discards`, the weights are discarded instead if all of them are trained and an update has replaced them
        before. Returns whether they were discarded. Requests then wait for the first update after `reload`.
        """
        self._not_updating.clear()
        self._lacks_weights |= discards and self._lora is None and self.version > 0
        with as_engine_failed("offload its weights"):
            await self._client.offload(self._lacks_weights)
        return self._lacks_weights

    async def reload(self) -> None:
        """Allocate the GPU memory, restore what `offload` kept, and resume; on CPUs, only resume."""
        with as_engine_failed("reload its weights"):
            await self._client.reload()
        if not self._lacks_weights:
            self._not_updating.set()

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def _tenant(self, job: str) -> EngineTenant:
        if job not in self._tenants:
            raise EngineFailed("the shared engine removed this job, because the job did not renew its lease in time")
        return self._tenants[job]

    async def add_tenant(self, job: str, lora: AdapterConfig, adapter: Path | None) -> None:
        """Add a tenant for a job that trains adapters of the shape `lora`.

        Version 0 is the adapter in the folder `adapter`; None: version 0 is the base model.
        """
        tenant = self._tenants[job] = EngineTenant(job, lora)
        if adapter is not None:
            with as_engine_failed("load an adapter"):
                await self._updates.load_adapter(tenant, 0, adapter)

    def remove_tenant(self, job: str) -> None:
        """Remove a job's tenant. The job's adapter is removed after its last running request."""
        tenant = self._tenants.pop(job)
        tenant.unstage()
        self._updates.release_adapter(tenant)

    @property
    def version(self) -> int:
        return self._tenants[""].version

    @property
    def sampled_tokens(self) -> int:
        return self._tenants[""].sampled_tokens

    @property
    def busy_s(self) -> float:
        """Total seconds since the start during which at least one request was running."""
        return self._slots.busy_s

    def live_metrics(self, job: str = "") -> dict[str, float]:
        """Return the current metrics of one job on this engine, keyed by the metric names in `agent_rft.metrics`."""
        tenant, (inside, waiting) = self._tenant(job), self._admission.count_for(job)
        used = min(inside, self._slots.count)
        return {
            "engine_slots": float(self._slots.count),
            "engine_slots_used": float(used),
            "engine_waiting": float(waiting + inside - used),
            "engine_sampled_tokens": float(tenant.sampled_tokens),
            "engine_version": float(tenant.version),
        }

    @property
    def async_llm_client(self) -> Any:
        """AsyncLLM of this engine, for vLLM's serving layer. Use it only if the weights are never updated."""
        return self._client.llm

    async def check_health(self) -> None:
        """Return once vLLM's engine core has answered a call; never returns if the core hangs.

        Raises:
            EngineFailed: The engine died.
        """
        with as_engine_failed("answer a health check"):
            await self._client.run_while_alive(self._client.llm.is_sleeping())  # any call without side effects

    def shutdown(self) -> None:
        """Stop vLLM's processes, close the connections to them and remove staged buckets from shared memory.

        Call this method in the thread of the engine's event loop. A second call does nothing.
        """
        for tenant in self._tenants.values():
            tenant.unstage()
        self._client.close()
