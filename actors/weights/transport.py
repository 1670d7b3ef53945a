"""The worker's end of weight transfer: a bucket comes through shared memory or from a broadcast, and is loaded in the
same way, which is that of vLLM's NCCL engine.

vLLM's worker is no Ray worker and cannot read Ray's object store, so the engine's actor puts each bucket into a file in
shared memory and this class, living in the worker, maps it. Runs on CPUs and GPUs, within a node and across nodes. An
engine has one transfer class for life, so this one knows both ways: who joins late must load without a group.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
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

from actors.weights.broadcast import Broadcast
from actors.weights.layout import num_bytes


@dataclass
class ShmInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Shared memory needs nothing. For broadcasts: where the group of `size` meets, and the rank in it of the engine's
    first worker.
    """

    address: str = ""
    rank: int = 0
    size: int = 0


@dataclass
class ShmUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One bucket, its tensors back to back, [name, dtype, shape] each: in a file, or (no path) in a broadcast."""

    path: str = ""
    tensors: list[list[Any]] = field(default_factory=list)


class ShmWeightTransferEngine(WeightTransferEngine[ShmInitInfo, ShmUpdateInfo]):  # type: ignore[misc]
    """Loads buckets between `initialize_layerwise_reload` and `finalize_layerwise_reload`, as vLLM's NCCL engine does:
    CPU workers repack weights, so a plain `load_weights` into a running model fails with a shape error.
    """

    init_info_cls = ShmInitInfo
    update_info_cls = ShmUpdateInfo

    _broadcast: Broadcast | None = None

    def init_transfer_engine(self, init_info: ShmInitInfo) -> None:
        """May be called again: the group is then another one."""
        self.shutdown()
        if init_info.size:
            rank = init_info.rank + self.parallel_config.rank
            self._broadcast = Broadcast(init_info.address, rank, init_info.size, torch.device(self.device))

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: ShmUpdateInfo) -> None:
        if update_info.path:
            with open(update_info.path, "r+b") as file:
                view = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            data = torch.frombuffer(view, dtype=torch.uint8)
        else:
            if self._broadcast is None:
                raise RuntimeError("a broadcast without a group")
            data = self._broadcast.receive(num_bytes(update_info.tensors))
        self.model.load_weights(_tensors(data, update_info.tensors))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if current_platform.is_cpu() and self.model_config.hf_text_config.tie_word_embeddings:
            # A tied head shares the embedding's tensor but on CPUs computes with a packed copy of it, which the reload
            # leaves as it was: it loaded no weights of the head's own.
            for module in self.model.modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        if (before := self._broadcast) is not None:
            self._broadcast = None
            before.close()


def _tensors(data: torch.Tensor, layout: list[list[Any]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that are the bucket's memory, and keep it: layer-wise reloading holds them until their layer is complete,
    and by then the file may be gone.
    """
    offset = 0
    for name, dtype, shape in layout:
        size = num_bytes([(name, dtype, shape)])
        yield name, data[offset : offset + size].view(getattr(torch, dtype)).reshape(shape)
        offset += size
