"""The configuration of an engine, and the vLLM arguments that it determines."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rft.actors.engine.engine_memory import (
    GPU_MEMORY_SHARE,
    TRAINED_ADAPTERS,
    adapter_slot_rank,
    cpu_cache_bytes,
    kv_bytes,
    max_batched_tokens,
)
from agent_rft.actors.engine.vllm_internals import CPU_EXECUTOR
from agent_rft.actors.engine.vllm_plugin import TRANSPORT, WORKER_EXTENSION
from agent_rft.actors.weights.start_timeout import start_timeout_s
from agent_rft.trainer.learner.adapter import AdapterConfig, AdapterFolder


def choose_executor(gpus: int) -> str:
    """Return vLLM's name for the executor that runs an engine's workers.

    With several GPUs, vLLM would choose Ray by default, because the engine's actor is in a placement group. vLLM would
    then wait forever for the GPUs of the placement group, because the actor already holds them.
    """
    if gpus == 0:
        return CPU_EXECUTOR
    return "uni" if gpus == 1 else "mp"


CPU_BLOCK_TOKENS = 32
"""Tokens per cache block: the minimum that vLLM's attention supports on CPUs.

Only full blocks are reused. With vLLM's default of 128 on CPUs, most prompts of small models would be computed again
in each turn."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The configuration of one engine.

    Attributes:
        model: Model name or folder. If it is an adapter's folder, policy version 0 is this adapter.
        gpus: Number of GPUs for tensor parallelism. If it is 0, the engine runs on CPUs.
        reasoning_delimiters: Tokens that open and close reasoning, if the model has reasoning. `max_reasoning_tokens`
            requires them.
        log_stats: Whether vLLM's metrics are enabled.
        lora: Shape of the adapters, with the maximum rank. If it is set, an update loads an adapter, not all weights.
        adapter_slots: Maximum number of adapters in the engine.
        gpu_share: Share of each GPU's memory that the engine takes.
        can_offload: Whether the engine can offload its weights temporarily.
        reports_experts: Whether completions contain the experts that each mixture-of-experts layer chose.
        batched_tokens: Token budget of one engine step; None: `max_batched_tokens`. Benchmarks compare other budgets.
    """

    model: str
    dtype: str
    context_length: int
    max_num_seqs: int
    seed: int
    gpus: int = 0
    transport: str = TRANSPORT
    reasoning_delimiters: tuple[str, str] | None = None
    log_stats: bool = False
    lora: AdapterConfig | None = None
    adapter_slots: int = TRAINED_ADAPTERS
    gpu_share: float = GPU_MEMORY_SHARE
    can_offload: bool = False
    reports_experts: bool = False
    batched_tokens: int | None = None


def set_environment(config: EngineConfig) -> None:
    """Set vLLM's environment variables. Call this function before vLLM is imported."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # By default vLLM gives up after 600 s. The fleet has a separate timeout with a better message.
    os.environ.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", str(math.ceil(start_timeout_s(Path(config.model)))))
    if config.gpus == 0:  # skips compilation, which takes seconds and does not help on CPUs
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")


def build_engine_args(
    config: EngineConfig, base: str, lora: AdapterConfig | None, adapter: AdapterFolder | None
) -> Any:
    """Return vLLM's AsyncEngineArgs for the model `base`.

    The adapter slots are large enough for the initial `adapter`, if any, and for later adapters of the shape `lora`.
    Without `lora`, the engine has no adapter slots.
    """
    from vllm.config import ReasoningConfig, WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    reasoning = None
    if config.reasoning_delimiters is not None:
        start, end = config.reasoning_delimiters
        reasoning = ReasoningConfig(reasoning_start_str=start, reasoning_end_str=end)
    return AsyncEngineArgs(
        model=base,
        dtype=config.dtype,
        max_model_len=config.context_length,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.batched_tokens
        or max_batched_tokens(config.context_length, config.max_num_seqs, on_gpu=config.gpus > 0),
        seed=config.seed,
        enforce_eager=config.gpus == 0,
        # Between the chunks of a prompt vLLM rewinds a seeded request's generator, which crashes it on CPUs.
        enable_chunked_prefill=config.gpus > 0,
        tensor_parallel_size=max(1, config.gpus),
        distributed_executor_backend=choose_executor(config.gpus),
        gpu_memory_utilization=config.gpu_share,
        enable_sleep_mode=config.can_offload and config.gpus > 0,
        enable_prefix_caching=True,
        block_size=CPU_BLOCK_TOKENS if config.gpus == 0 else None,
        # The learner divides its logits by the temperature, so the engine's log-probabilities must use it too.
        logprobs_mode="processed_logprobs",
        generation_config="vllm",
        disable_log_stats=not config.log_stats,
        weight_transfer_config=WeightTransferConfig(backend=config.transport),
        worker_extension_cls=WORKER_EXTENSION,
        reasoning_config=reasoning,
        enable_return_routed_experts=config.reports_experts and config.gpus > 0,  # vLLM supports it on GPUs only
        **_adapter_slot_args(config, lora, adapter),
    )


def _adapter_slot_args(
    config: EngineConfig, lora: AdapterConfig | None, adapter: AdapterFolder | None
) -> dict[str, Any]:
    """Return vLLM's arguments for adapter slots; empty if `lora` is None.

    The slots are large enough for `adapter` and for later adapters with the configuration `lora`.
    """
    if lora is None:
        return {}
    rank = lora.rank if adapter is None else max(lora.rank, adapter.config.rank)
    slots = config.adapter_slots
    return {"enable_lora": True, "max_lora_rank": adapter_slot_rank(rank), "max_loras": slots, "max_cpu_loras": slots}


def build_vllm_config(args: Any, config: EngineConfig) -> Any:
    """Convert AsyncEngineArgs to vLLM's VllmConfig, and set the cache size of an engine on CPUs."""
    if config.gpus == 0 and args.create_model_config().is_hybrid:
        args.enable_prefix_caching = False  # needs chunked prefill for layers with a state
    found = args.create_engine_config()
    if config.gpus == 0:
        model = found.model_config
        layers, kv_heads = model.get_total_num_hidden_layers(), model.get_total_num_kv_heads()
        token = kv_bytes(layers, kv_heads, model.get_head_size(), model.dtype.itemsize)
        found.cache_config.kv_cache_memory_bytes = cpu_cache_bytes(config.max_num_seqs, config.context_length, token)
    return found
