"""Added to vLLM's worker class: what `AsyncLLM.collective_rpc` can call there."""

from __future__ import annotations

from typing import Any

import torch
from safetensors import safe_open
from vllm.platforms import current_platform

from agent_rft.actors.engine.worker.expert_log import ExpertLog
from agent_rft.actors.engine.worker.grouped_lora import GroupedLora
from agent_rft.actors.engine.worker.rotary import use_flat_rotary
from agent_rft.actors.weights.adapter import WEIGHTS_FILE
from agent_rft.actors.weights.checkpoint_weights import as_bytes
from agent_rft.actors.weights.checksum import MASK, checksum
from agent_rft.actors.weights.transport import ShmWeightTransferEngine
from agent_rft.trainer.model.router_replay import experts_per_token, num_experts

if current_platform.is_cpu():  # when vLLM's worker is made, which is before its model is
    use_flat_rotary()


class WorkerExtension:
    """`model_runner` and `vllm_config` are vLLM's."""

    weight_transfer_engine: ShmWeightTransferEngine
    model_runner: Any
    vllm_config: Any
    expert_log: ExpertLog

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

    def log_experts(self, most: int) -> None:
        """On CPUs, note which experts are chosen for each token of the last `most` requests; see `ExpertLog`."""
        model = self.vllm_config.model_config
        config, num_layers = model.hf_text_config, model.get_total_num_hidden_layers()
        sizes = num_experts(config), experts_per_token(config)
        self.expert_log = ExpertLog(self.model_runner, num_layers, *sizes, most)

    def take_experts(self, request_id: str) -> tuple[bytes, str, list[int]] | None:
        """The bytes, type and shape of `ExpertLog.take`."""
        found = self.expert_log.take(request_id)
        return None if found is None else (found.tobytes(), str(found.dtype), list(found.shape))

    def missing_modules(self, lora_id: int) -> list[str]:
        """The modules that a loaded adapter changes and the model lacks."""
        manager = self.model_runner.lora_manager._adapter_manager
        return sorted(manager.get_adapter(lora_id).loras.keys() - manager.modules.keys())

    def adapter_checksum(self, folder: str, buckets: list[list[Any]]) -> int:
        """The sum of the checksums of the buckets in an adapter's file; `buckets` are their layouts."""
        with safe_open(f"{folder}/{WEIGHTS_FILE}", framework="pt") as file:
            data = [as_bytes([file.get_tensor(name) for name, *_ in layout]) for layout in buckets]
        return sum(checksum(torch.from_numpy(bucket)) for bucket in data) & MASK
