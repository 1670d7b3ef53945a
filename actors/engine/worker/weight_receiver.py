"""Weight transport in vLLM's worker: receives buckets from shared memory or by broadcast, and loads them.

A vLLM worker is not a Ray worker and cannot read Ray's object store. The engine's actor therefore writes each bucket to
a file in shared memory, which the worker maps. This works on CPUs and GPUs, within and across nodes. vLLM allows one
transfer class per engine, and an engine that joins late must load without a group, so this class does both.

Each bucket has a checksum. `DirectCopies` detects weights that a model copies straight into its parameters.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from agent_rft.actors.engine.vllm_internals import begin_reload, finish_reload, load_when_complete
from agent_rft.actors.weights.weight_bucket import MASK, compute_checksum, split_tensors
from agent_rft.trainer.learner.process_group import BroadcastGroup
from agent_rft.trainer.learner.weight_buckets import num_bytes

_DATA: Callable[..., Any] = Tensor.data.__get__  # type: ignore[attr-defined]


class DirectCopies(TorchFunctionMode):
    """Redirects copies into parameters and buffers without memory to a loader that stores the values."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._places: dict[int, tuple[Any, nn.Module, str]] = {
            id(held): (held, module, name)  # keep the tensor too, or another tensor may get its id
            for module in model.modules()
            for name, held in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        }
        self._handed = ""
        self._is_loading = False
        self.copied: set[str] = set()
        """Names of the tensors that were copied directly, at least in part."""

    def watched(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors and record the current name; a model copies each tensor before it requests the next."""
        for self._handed, tensor in tensors:
            yield self._handed, tensor

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """Context manager for a loader's copies, which are not redirected: without memory they only count elements."""
        before, self._is_loading = self._is_loading, True
        try:
            yield
        finally:
            self._is_loading = before

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        place = self._places.get(id(args[0])) if args and not self._is_loading else None
        if place is not None and func == _DATA:
            return args[0]  # so that `parameter.data.copy_` is handled like `parameter.copy_`
        if place is not None and func is Tensor.copy_:
            held, module, name = place
            self.copied.add(self._handed)
            if held.is_meta:
                return load_when_complete(held, module, name, args[1])
            return held.data.copy_(args[1])
        return func(*args, **(kwargs or {}))


@dataclass
class ShmInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Empty for shared memory; for broadcasts, the group's address and size, and this engine's first rank."""

    address: str = ""
    rank: int = 0
    size: int = 0


@dataclass
class ShmUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One bucket: its tensors back to back, each as [name, dtype, shape], in the file `path`, or broadcast if empty.

    `checksum` is the checksum of the file's bytes, computed before generation paused.
    """

    path: str = ""
    checksum: int = 0
    tensors: list[list[Any]] = field(default_factory=list)


class ShmWeightTransferEngine(WeightTransferEngine[ShmInitInfo, ShmUpdateInfo]):  # type: ignore[misc]
    """Loads buckets between `begin_reload` and `finish_reload`, as vLLM's NCCL engine does."""

    init_info_cls = ShmInitInfo
    update_info_cls = ShmUpdateInfo

    _broadcast: BroadcastGroup | None = None
    _checksum = 0
    _missed_names: frozenset[str] = frozenset()
    _copies: DirectCopies
    _handed: dict[int, str]
    """Names of the current bucket's tensors that no parameter has loaded yet, by memory address."""

    def init_transfer_engine(self, init_info: ShmInitInfo) -> None:
        """Join a broadcast group, if `init_info` has one; a second call replaces the group."""
        self.shutdown()
        if init_info.size:
            rank = init_info.rank + self.parallel_config.rank
            self._broadcast = BroadcastGroup(init_info.address, rank, init_info.size, torch.device(self.device))

    def start_weight_update(self) -> None:
        begin_reload(self.model)
        self._checksum, self._missed_names, self._handed = 0, frozenset(), {}
        for module in self.model.modules():
            held: Any
            for held in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                loader = getattr(held, "weight_loader", None)
                if loader and not hasattr(loader, "notes"):  # vLLM uses the same parameters again in each update
                    held.weight_loader = self._record_loads(loader)

    def _record_loads(self, loader: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a parameter's loader to record the tensors it loaded. vLLM unwraps it by its name and `__wrapped__`."""

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
        """Return the sum of the last update's checksums, and the names of tensors that no parameter loaded."""
        return self._checksum, sorted(self._missed_names)

    def receive_weights(self, update_info: ShmUpdateInfo) -> None:
        if update_info.path:
            with open(update_info.path, "r+b") as file:
                view = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            data, number = torch.frombuffer(view, dtype=torch.uint8), update_info.checksum
        else:
            if self._broadcast is None:
                raise RuntimeError("cannot receive a broadcast before init_transfer_engine has joined a group")
            data = self._broadcast.receive(num_bytes(update_info.tensors))
            number = compute_checksum(data)
        tensors = list(split_tensors(data, update_info.tensors))
        self._handed = {tensor.data_ptr(): name for name, tensor in tensors}
        self._copies = DirectCopies(self.model)
        with self._copies:
            self.model.load_weights(self._copies.watched(tensors))
        self._checksum = (self._checksum + number) & MASK
        self._missed_names |= set(self._handed.values()) - self._copies.copied

    def finish_weight_update(self) -> None:
        finish_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        if (before := self._broadcast) is not None:
            self._broadcast = None
            before.close()
