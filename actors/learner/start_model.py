"""The model that training starts from: the whole of it, or a base and an adapter, new or trained before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from actors.weights.adapter import AdapterConfig, AdapterFolder, write_adapter
from actors.weights.checkpoint_weights import copy_companions, other_tensors, write_model
from trainer.model.lora import add_adapter, targets_of
from trainer.model.policy import Policy, load_policy
from trainer.spec.lora import LoraSpec


@dataclass(frozen=True, slots=True)
class StartModel:
    """The model in `folder`, of which `lora` (None: all) is trained; an `adapter` that is there goes on."""

    folder: Path
    dtype: torch.dtype
    lora: LoraSpec | None
    adapter: AdapterFolder | None

    @classmethod
    def of(cls, folder: Path, dtype: torch.dtype, lora: LoraSpec | None) -> StartModel:
        """Find out what is in a folder.

        Raises:
            UserError: It is an adapter of another shape than `lora`.
        """
        adapter = AdapterFolder.read(folder)
        if adapter is not None:
            adapter.refuse_unless(lora)
        return cls(folder, dtype, lora, adapter)

    @property
    def base(self) -> Path:
        return self.folder if self.adapter is None else self.adapter.base

    @property
    def trained(self) -> str:
        """What is trained, in words: two of different words cannot go on with each other's state."""
        return "all weights" if self.lora is None else f"LoRA of {self.lora}"

    def load(
        self, temperature: float, seed: int, reading: AbstractContextManager[object], *, keeps_start: bool
    ) -> Policy:
        """The policy, whose weights are read inside `reading`; with LoRA and `keeps_start` it computes `as_start` too.

        Raises:
            UserError: The learner cannot train this model, or an adapter does not fit it.
        """
        with reading:
            policy = load_policy(self.base, self.dtype, temperature)
        if self.lora is not None:
            start = None if self.adapter is None else self.adapter.tensors()
            add_adapter(policy, self.lora, seed, start, keeps_start=keeps_start)
        return policy

    def write(self, policy: Policy, shards: Sequence[Mapping[str, Tensor]], folder: Path) -> None:
        """Write `CheckpointWeights.copies` as a folder that transformers and vLLM can load.

        Raises:
            OSError: The disk is full or read-only.
        """
        if self.lora is None:
            write_model([*shards, *other_tensors(policy.model, self.folder)], folder, self.folder, self.dtype)
            return
        copy_companions(self.folder, folder, self.dtype)
        shape = AdapterConfig(self.lora.rank, self.lora.alpha, targets_of(policy, self.lora))
        tensors = {name: tensor for shard in shards for name, tensor in shard.items()}
        write_adapter(folder, tensors, shape.config(str(self.base.absolute())))
