"""Methods that `AsyncLLM.collective_rpc` calls on vLLM's workers, and a fix for rotary positions on CPUs."""

from __future__ import annotations

from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from vllm.platforms import current_platform

from agent_rft.actors.engine.vllm_internals import (
    missing_modules,
    replace_lora_operations,
    replace_rotary_kernel,
    rotary_kernel,
)
from agent_rft.actors.engine.worker.expert_log import ExpertLog
from agent_rft.actors.engine.worker.grouped_lora import GroupedLora
from agent_rft.actors.engine.worker.weight_receiver import ShmWeightTransferEngine
from agent_rft.actors.weights.weight_bucket import MASK, compute_checksum
from agent_rft.trainer.learner.adapter import WEIGHTS_FILE
from agent_rft.trainer.learner.checkpoint_weights import concat_bytes
from agent_rft.trainer.model.router_replay import experts_per_token, num_experts

_KERNEL = rotary_kernel()


def apply_rotary_positions(
    rotary: Any, positions: Tensor, query: Tensor, key: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Apply rotary position embeddings to `query` and `key`, and return both in their original shapes.

    The shapes are [T, heads * size] or [T, heads, size]; vLLM's own method supports only the first. `key` may be None.
    """
    flat = None if key is None else key.flatten(1)
    rotated, turned = _KERNEL(rotary, positions, query.flatten(1), flat)
    return rotated.view(query.shape), None if key is None else turned.view(key.shape)


if current_platform.is_cpu():  # this module is imported when vLLM's worker is created, before its model
    replace_rotary_kernel(apply_rotary_positions)


class WorkerExtension:
    """Mixin class for vLLM's worker, with methods that the engine calls. vLLM sets its attributes."""

    weight_transfer_engine: ShmWeightTransferEngine
    model_runner: Any
    model_config: Any
    vllm_config: Any
    expert_log: ExpertLog

    def last_update_report(self) -> tuple[int, list[str]]:
        return self.weight_transfer_engine.last_update_report()

    def keep_unloaded_parameters(self) -> None:
        """Let vLLM's sleep level 2 keep the parameters that the last update did not load."""
        self.model_config.sleep_preserve_parameter_names = self.weight_transfer_engine.unloaded_parameters

    def prepare_adapters(self) -> None:
        """On CPUs, replace vLLM's LoRA operations with `GroupedLora`."""
        if not current_platform.is_cpu():
            return
        scheduler = self.vllm_config.scheduler_config
        sizes = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
        replace_lora_operations(self.model_runner, lambda: GroupedLora(*sizes, self.model_runner.device))

    def log_experts(self, max_requests: int) -> None:
        """Start an `ExpertLog` for the last `max_requests` requests. Called on CPUs only."""
        model = self.vllm_config.model_config
        config, num_layers = model.hf_text_config, model.get_total_num_hidden_layers()
        sizes = num_experts(config), experts_per_token(config)
        self.expert_log = ExpertLog(self.model_runner, num_layers, *sizes, max_requests)

    def take_experts(self, request_id: str) -> tuple[bytes, str, list[int]] | None:
        """Return (bytes, dtype, shape) of the array from `ExpertLog.take`; None for an unknown request."""
        found = self.expert_log.take(request_id)
        return None if found is None else (found.tobytes(), str(found.dtype), list(found.shape))

    def missing_modules(self, lora_id: int) -> list[str]:
        """Return the names of modules that a loaded adapter changes but the model does not have."""
        return missing_modules(self.model_runner, lora_id)

    def adapter_checksum(self, folder: str, buckets: list[list[Any]]) -> int:
        """Return the sum of the checksums of an adapter's buckets, computed from the adapter's file in `folder`.

        `buckets` contains the layout of each bucket.
        """
        with safe_open(f"{folder}/{WEIGHTS_FILE}", framework="pt") as file:
            data = [concat_bytes([file.get_tensor(name) for name, *_ in layout]) for layout in buckets]
        return sum(compute_checksum(torch.from_numpy(bucket)) for bucket in data) & MASK
