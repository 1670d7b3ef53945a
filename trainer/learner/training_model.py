"""The model that training starts from: a full model, or a base model with a new or existing adapter."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from agent_rft.spec.model_options import LoraSpec
from agent_rft.trainer.learner.adapter import AdapterConfig, AdapterFolder, write_adapter
from agent_rft.trainer.learner.checkpoint_weights import copy_non_weight_files, read_unused_tensors, write_model
from agent_rft.trainer.learner.deepspeed_internals import partition_parameter
from agent_rft.trainer.model.lora import add_adapter, expand_targets
from agent_rft.trainer.model.policy import Policy, load_policy

NO_ASYNC_LOAD = "HF_DEACTIVATE_ASYNC_LOAD"
"""Environment variable of transformers that turns off loader threads, which would convert tensors before they are
needed."""


@dataclass(frozen=True, slots=True)
class TrainingModel:
    """The model in `folder`. All of its weights are trained, or only an adapter if `lora` is set.

    If the folder contains an adapter, `adapter` is this adapter, and its training continues.
    """

    folder: Path
    dtype: torch.dtype
    lora: LoraSpec | None
    adapter: AdapterFolder | None

    @classmethod
    def from_folder(cls, folder: Path, dtype: torch.dtype, lora: LoraSpec | None) -> TrainingModel:
        """Return the training model for a folder that contains a full model or an adapter.

        Raises:
            UserError: The folder contains an adapter that does not match `lora`.
        """
        adapter = AdapterFolder.read(folder)
        if adapter is not None:
            adapter.check_compatible(lora)
        return cls(folder, dtype, lora, adapter)

    @property
    def base(self) -> Path:
        return self.folder if self.adapter is None else self.adapter.base

    @property
    def trained_weights_description(self) -> str:
        """Human-readable description of the trained weights. A loaded checkpoint must have the same description."""
        return "all weights" if self.lora is None else f"LoRA of {self.lora}"

    def load(
        self, temperature: float, seed: int, reading: AbstractContextManager[object], *, keeps_reference: bool
    ) -> Policy:
        """Load the policy; its weights are read inside the context manager `reading`.

        With LoRA and `keeps_reference`, the policy supports `as_reference`.

        Raises:
            UserError: The learner does not support this model, or the adapter does not fit the model.
        """
        with reading:
            policy = load_policy(self.base, self.dtype, temperature)
        if self.lora is not None:
            start = None if self.adapter is None else self.adapter.load_tensors()
            add_adapter(policy, self.lora, seed, start, keeps_reference=keeps_reference)
        return policy

    def write(self, policy: Policy, shards: Sequence[Mapping[str, Tensor]], folder: Path) -> None:
        """Write `shards`, the result of `CheckpointWeights.copy_all`, as a folder that transformers and vLLM can load.

        Raises:
            OSError: The disk is full or read-only.
        """
        if self.lora is None:
            write_model([*shards, *read_unused_tensors(policy.model, self.folder)], folder, self.folder, self.dtype)
            return
        copy_non_weight_files(self.folder, folder, self.dtype)
        shape = AdapterConfig(self.lora.rank, self.lora.alpha, expand_targets(policy, self.lora))
        tensors = {name: tensor for shard in shards for name, tensor in shard.items()}
        write_adapter(folder, tensors, shape.to_peft_config(str(self.base.absolute())))


@contextmanager
def partition_on_read(deepspeed: Any, dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Context manager that partitions each weight for ZeRO 3 as soon as transformers has read it.

    Transformers renames, converts and merges weights before it sets them in the model. A weight that needs no
    conversion is a view of the memory-mapped file. Only the pages with this rank's part of the weight are then read.
    DeepSpeed's own way would copy each weight to the device and broadcast it. This is not needed, because all ranks
    have the same files.
    """
    init = deepspeed.zero.Init(dtype=dtype)

    def partition_if_read(module: nn.Module, name: str, parameter: Any) -> None:
        # Transformers sets this on each weight that it has read. A tied weight is registered again after partitioning.
        if getattr(parameter, "_is_hf_initialized", False):
            partition_parameter(init, parameter, device)

    hook = register_module_parameter_registration_hook(partition_if_read)
    os.environ[NO_ASYNC_LOAD] = "1"
    try:
        yield
    finally:
        del os.environ[NO_ASYNC_LOAD]
        hook.remove()
