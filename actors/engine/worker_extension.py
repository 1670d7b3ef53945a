"""Added to vLLM's worker class: what `AsyncLLM.collective_rpc` can call there."""

from __future__ import annotations

from typing import Any

import torch
from safetensors import safe_open
from vllm.platforms import current_platform

from actors.engine.grouped_lora import GroupedLora
from actors.engine.rotary import use_flat_rotary
from actors.weights.adapter import WEIGHTS_FILE
from actors.weights.checkpoint_weights import as_bytes
from actors.weights.checksum import MASK, checksum
from actors.weights.transport import ShmWeightTransferEngine

if current_platform.is_cpu():  # when vLLM's worker is made, which is before its model is
    use_flat_rotary()


class WorkerExtension:
    """`model_runner` and `vllm_config` are vLLM's."""

    weight_transfer_engine: ShmWeightTransferEngine
    model_runner: Any
    vllm_config: Any

    def loaded_weights(self) -> tuple[int, list[str]]:
        return self.weight_transfer_engine.loaded_weights()

    def prepare_adapters(self) -> None:
        """On CPUs, replace vLLM's LoRA operations by ours."""
        if not current_platform.is_cpu():
            return
        manager = self.model_runner.lora_manager._adapter_manager
        scheduler = self.vllm_config.scheduler_config
        for prefix in manager.punica_wrapper_mapping:
            wrapper = GroupedLora(scheduler.max_num_batched_tokens, scheduler.max_num_seqs, self.model_runner.device)
            manager.punica_wrapper_mapping[prefix] = wrapper
        for name, module in manager.modules.items():
            module.set_mapping(manager._get_punica_wrapper(name))

    def missing_modules(self, lora_id: int) -> list[str]:
        """The modules that a loaded adapter changes and the model lacks."""
        manager = self.model_runner.lora_manager._adapter_manager
        return sorted(manager.get_adapter(lora_id).loras.keys() - manager.modules.keys())

    def adapter_checksum(self, folder: str, buckets: list[list[Any]]) -> int:
        """The sum of the checksums of the buckets in an adapter's file; `buckets` are their layouts."""
        with safe_open(f"{folder}/{WEIGHTS_FILE}", framework="pt") as file:
            data = [as_bytes([file.get_tensor(name) for name, *_ in layout]) for layout in buckets]
        return sum(checksum(torch.from_numpy(bucket)) for bucket in data) & MASK
