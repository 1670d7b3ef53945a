"""The receiving end in vLLM's worker: a bucket comes from shared memory or a broadcast, and is loaded the same way.

A vLLM worker is not a Ray worker and cannot read Ray's object store. So the engine's actor writes each bucket to a file
in shared memory, and this class, in the worker, maps it. It runs on CPUs and GPUs, within and across nodes. vLLM allows
one transfer class per engine, so this class does both: an engine that joins late must load without a group.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from agent_rft.actors.weights.broadcast import Broadcast
from agent_rft.actors.weights.checksum import MASK, checksum
from agent_rft.actors.weights.direct_copies import DirectCopies
from agent_rft.actors.weights.layout import num_bytes


@dataclass
class ShmInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Empty for shared memory; for broadcasts, the group's address and size, and the rank of the first worker here."""

    address: str = ""
    rank: int = 0
    size: int = 0


@dataclass
class ShmUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One bucket: its tensors back to back, each as [name, dtype, shape], in the file `path`, or broadcast if empty.

    `checksum` is that of a file's bytes, taken before generation paused.
    """

    path: str = ""
    checksum: int = 0
    tensors: list[list[Any]] = field(default_factory=list)


class ShmWeightTransferEngine(WeightTransferEngine[ShmInitInfo, ShmUpdateInfo]):  # type: ignore[misc]
    """Loads buckets between `initialize_layerwise_reload` and `finalize_layerwise_reload`, as vLLM's NCCL engine does.

    CPU workers repack weights, so a plain `load_weights` into a running model fails with a shape error.
    """

    init_info_cls = ShmInitInfo
    update_info_cls = ShmUpdateInfo

    _broadcast: Broadcast | None = None
    _checksum = 0
    _missed: frozenset[str] = frozenset()
    _copies: DirectCopies
    _handed: dict[int, str]
    """Names of the tensors of the bucket that is being loaded, by address, without those that a parameter took."""

    def init_transfer_engine(self, init_info: ShmInitInfo) -> None:
        """Join a broadcast group, if `init_info` has one; a second call replaces the group."""
        self.shutdown()
        if init_info.size:
            rank = init_info.rank + self.parallel_config.rank
            self._broadcast = Broadcast(init_info.address, rank, init_info.size, torch.device(self.device))

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)
        self._checksum, self._missed, self._handed = 0, frozenset(), {}
        for module in self.model.modules():
            held: Any
            for held in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                loader = getattr(held, "weight_loader", None)
                if loader and not hasattr(loader, "notes"):  # vLLM brings the same tensors back in each update
                    held.weight_loader = self._noting(loader)
            method = getattr(module, "quant_method", None)
            if current_platform.is_cpu() and method is not None and hasattr(method, "moe_kernel"):
                method.moe_kernel = (
                    None  # with a kernel, vLLM would not pack the new weights of experts as a CPU's need
                )

    def _noting(self, loader: Callable[..., Any]) -> Callable[..., Any]:
        """A parameter's loader that notes which tensors it took. vLLM unwraps it by its name and `__wrapped__`."""

        @wraps(loader)
        def noting(*arguments: Any, **named: Any) -> Any:
            for value in (*arguments, *named.values()):
                if isinstance(value, torch.Tensor) and not value.is_meta:
                    self._handed.pop(value.data_ptr(), None)
            with self._copies.left_alone():
                return loader(*arguments, **named)

        noting.notes = True  # type: ignore[attr-defined]
        return noting

    def loaded_weights(self) -> tuple[int, list[str]]:
        """The sum of the checksums of the last update's buckets, and the tensors in them that no parameter took."""
        return self._checksum, sorted(self._missed)

    def receive_weights(self, update_info: ShmUpdateInfo) -> None:
        if update_info.path:
            with open(update_info.path, "r+b") as file:
                view = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            data, number = torch.frombuffer(view, dtype=torch.uint8), update_info.checksum
        else:
            if self._broadcast is None:
                raise RuntimeError("cannot receive a broadcast before init_transfer_engine has joined a group")
            data = self._broadcast.receive(num_bytes(update_info.tensors))
            number = checksum(data)
        tensors = list(tensors_in(data, update_info.tensors))
        self._handed = {tensor.data_ptr(): name for name, tensor in tensors}
        self._copies = DirectCopies(self.model)
        with self._copies:
            self.model.load_weights(self._copies.watched(tensors))
        self._checksum = (self._checksum + number) & MASK
        self._missed |= set(self._handed.values()) - self._copies.copied

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if current_platform.is_cpu() and self.model_config.hf_text_config.tie_word_embeddings:
            # A tied head shares the embedding's tensor, but on CPUs it computes with a packed copy of it. The reload
            # does not update this copy, since it loads no weights for the head itself.
            for module in self.model.modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        if (before := self._broadcast) is not None:
            self._broadcast = None
            before.close()


def bytes_of(path: Path, num_bytes: int) -> torch.Tensor:
    """A file's bytes, mapped."""
    return torch.from_file(str(path), size=num_bytes, dtype=torch.uint8)


def tensors_in(data: torch.Tensor, layout: Iterable[Sequence[Any]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a bucket as views of its memory, which they keep alive.

    Layer-wise reloading holds them until their layer is complete, and by then the file may be deleted.
    """
    offset = 0
    for name, dtype, shape in layout:
        size = num_bytes([(name, dtype, shape)])
        yield name, data[offset : offset + size].view(getattr(torch, dtype)).reshape(shape)
        offset += size
