"""The worker's end of weight transfer through shared memory: a bucket is loaded exactly as NCCL's would be.

vLLM's worker is no Ray worker and cannot read Ray's object store, so the engine's actor puts each bucket into a file in
shared memory and this class, living in the worker, maps it. Runs on CPUs and GPUs, within a node and across nodes.
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


@dataclass
class ShmInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing to agree on beforehand."""


@dataclass
class ShmUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One bucket: a file and what lies in it, back to back: [name, dtype, shape] each."""

    path: str
    tensors: list[list[Any]] = field(default_factory=list)


class ShmWeightTransferEngine(WeightTransferEngine[ShmInitInfo, ShmUpdateInfo]):  # type: ignore[misc]
    """Loads buckets between `initialize_layerwise_reload` and `finalize_layerwise_reload`, as vLLM's NCCL engine does:
    CPU workers repack weights, so a plain `load_weights` into a running model fails with a shape error."""

    init_info_cls = ShmInitInfo
    update_info_cls = ShmUpdateInfo

    def init_transfer_engine(self, init_info: ShmInitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: ShmUpdateInfo) -> None:
        with open(update_info.path, "r+b") as file:
            view = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.model.load_weights(_tensors(view, update_info.tensors))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if current_platform.is_cpu() and self.model_config.hf_text_config.tie_word_embeddings:
            # A tied head shares the embedding's tensor but on CPUs computes with a packed copy of it, which the reload
            # leaves as it was: it loaded no weights of the head's own.
            for module in self.model.modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        pass


def _tensors(view: mmap.mmap, layout: list[list[Any]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that are the mapping's memory, and keep it mapped: layer-wise reloading holds them until their layer is
    complete, and by then the file may be gone."""
    offset = 0
    for name, dtype_name, shape in layout:
        dtype: torch.dtype = getattr(torch, dtype_name)
        count = 1
        for extent in shape:
            count *= extent
        yield name, torch.frombuffer(view, dtype=dtype, count=count, offset=offset).reshape(shape)
        offset += count * dtype.itemsize
