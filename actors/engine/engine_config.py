"""The configuration of an engine, and the arguments of vLLM that follow from it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rft.actors.engine.plugin import TRANSPORT, WORKER_EXTENSION
from agent_rft.actors.engine.sizes import (
    GPU_MEMORY_SHARE,
    MIN_BATCHED_TOKENS,
    TRAINED_ADAPTERS,
    cpu_cache_bytes,
    kv_bytes,
    slot_rank,
)
from agent_rft.actors.engine.vllm_internals import CPU_EXECUTOR
from agent_rft.actors.weights.start_timeout import start_timeout_s
from agent_rft.trainer.learner.adapter import AdapterConfig, AdapterFolder


def executor_of(gpus: int) -> str:
    """The way in which vLLM runs an engine's workers.

    With several GPUs vLLM would choose Ray by default, because the engine's actor is in a placement group, and would
    wait forever for GPUs in it: this actor has them all.
    """
    if gpus == 0:
        return CPU_EXECUTOR
    return "uni" if gpus == 1 else "mp"


CPU_BLOCK_TOKENS = 32
"""Tokens of a cache block, the smallest that vLLM's attention takes on CPUs. Only whole blocks are found again, so with
its default there, 128, most prompts of small models were computed again in each turn of each rollout."""


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


def set_environment(config: EngineConfig) -> None:
    """Set vLLM's variables; call it before vLLM is imported."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # By default vLLM gives up after 600 s. The fleet has a timeout of its own, with a better message.
    os.environ.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", str(math.ceil(start_timeout_s(Path(config.model)))))
    if config.gpus == 0:  # skips seconds of compilation, which gains nothing on CPUs
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")


def engine_args(config: EngineConfig, base: str, lora: AdapterConfig | None, adapter: AdapterFolder | None) -> Any:
    """Return vLLM's AsyncEngineArgs for the model `base` with slots for `adapter` and later adapters like `lora`."""
    from vllm.config import ReasoningConfig, WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    reasoning = None
    if config.thought_marks is not None:
        start, end = config.thought_marks
        reasoning = ReasoningConfig(reasoning_start_str=start, reasoning_end_str=end)
    return AsyncEngineArgs(
        model=base,
        dtype=config.dtype,
        max_model_len=config.context_length,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=max(MIN_BATCHED_TOKENS, config.context_length),
        seed=config.seed,
        enforce_eager=config.gpus == 0,
        # Between the chunks of a prompt vLLM rewinds a seeded request's generator, which crashes it on CPUs.
        enable_chunked_prefill=config.gpus > 0,
        tensor_parallel_size=max(1, config.gpus),
        distributed_executor_backend=executor_of(config.gpus),
        gpu_memory_utilization=config.gpu_share,
        enable_sleep_mode=config.sleeps and config.gpus > 0,
        enable_prefix_caching=True,
        block_size=CPU_BLOCK_TOKENS if config.gpus == 0 else None,
        # The learner divides its logits by the temperature; so must the engine's log-probabilities.
        logprobs_mode="processed_logprobs",
        generation_config="vllm",
        disable_log_stats=not config.log_stats,
        weight_transfer_config=WeightTransferConfig(backend=config.transport),
        worker_extension_cls=WORKER_EXTENSION,
        reasoning_config=reasoning,
        enable_return_routed_experts=config.reports_experts and config.gpus > 0,  # vLLM does so on GPUs only
        **_adapter_slots(config, lora, adapter),
    )


def _adapter_slots(config: EngineConfig, lora: AdapterConfig | None, adapter: AdapterFolder | None) -> dict[str, Any]:
    """Return the arguments of vLLM that make slots for this adapter and later ones."""
    if lora is None:
        return {}
    rank = lora.rank if adapter is None else max(lora.rank, adapter.config.rank)
    slots = config.adapter_slots
    return {"enable_lora": True, "max_lora_rank": slot_rank(rank), "max_loras": slots, "max_cpu_loras": slots}


def vllm_config(args: Any, config: EngineConfig) -> Any:
    """Return vLLM's VllmConfig from its AsyncEngineArgs, with the cache size of an engine on a CPU."""
    if config.gpus == 0 and args.create_model_config().is_hybrid:
        args.enable_prefix_caching = False  # of layers with a state it needs chunked prefill
    found = args.create_engine_config()
    if config.gpus == 0:
        model = found.model_config
        layers, kv_heads = model.get_total_num_hidden_layers(), model.get_total_num_kv_heads()
        token = kv_bytes(layers, kv_heads, model.get_head_size(), model.dtype.itemsize)
        found.cache_config.kv_cache_memory_bytes = cpu_cache_bytes(config.max_num_seqs, config.context_length, token)
    return found
