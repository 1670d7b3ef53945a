"""Weight transport in vLLM's worker: receives buckets from shared memory or by broadcast, and loads them.

A vLLM worker is not a Ray worker and cannot read Ray's object store. The engine's actor therefore writes each bucket to
a file in shared memory, which the worker maps. This works on CPUs and GPUs, within and across nodes.

vLLM allows only one transport class per engine. An engine that starts later is not in the broadcast group and must load
from shared memory. The transport class therefore supports both shared memory and broadcasts.

Each bucket has a checksum. `DirectCopies` detects weights that a model copies straight into its parameters.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

from agent_rft.actors.engine.vllm_internals import (
    begin_reload,
    find_unloaded_layers,
    finish_reload,
    load_when_complete,
)
from agent_rft.actors.weights.weight_bucket import MASK, compute_checksum, split_tensors
from agent_rft.trainer.learner.process_group import BroadcastGroup
from agent_rft.trainer.learner.weight_buckets import num_bytes

_DATA: Callable[..., Any] = Tensor.data.__get__  # type: ignore[attr-defined]


class DirectCopies(TorchFunctionMode):
    """Intercepts direct copies into a model's parameters and buffers while new weights are loaded.

    During a reload, parameters and buffers have no memory. The copied values are passed to a loader that stores them.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._places: dict[int, tuple[Any, nn.Module, str]] = {
            id(held): (held, module, name)  # keep the tensor too, or another tensor may get its id
            for module in model.modules()
            for name, held in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        }
        self._current_name = ""
        self._is_loading = False
        self.copied: set[str] = set()
        """Names of the new tensors that were copied directly into the model, completely or in part."""

    def record_names(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and tensors, and record the name of the current tensor.

        A model copies each tensor before it requests the next one, so the recorded name belongs to the copied tensor.
        """
        for self._current_name, tensor in tensors:
            yield self._current_name, tensor

    @contextmanager
    def skip_interception(self) -> Iterator[None]:
        """Context manager that disables the interception of copies."""
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
            self.copied.add(self._current_name)
            if held.is_meta:
                return load_when_complete(held, module, name, args[1])
            return held.data.copy_(args[1])
        return func(*args, **(kwargs or {}))


@dataclass
class ShmInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Init info of the transport: address and size of the broadcast group, and this engine's first rank in it.

    For shared memory, the fields keep their defaults.
    """

    address: str = ""
    rank: int = 0
    size: int = 0


@dataclass
class ShmUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One bucket of weights in the shared-memory file `path`. If `path` is empty, the bucket is broadcast.

    `tensors` contains [name, dtype, shape] of each tensor, in the order in which their bytes are concatenated.
    `checksum` is the checksum of the file's bytes, computed before sampling paused.
    """

    path: str = ""
    checksum: int = 0
    tensors: list[list[Any]] = field(default_factory=list)


class ShmWeightTransferEngine(WeightTransferEngine[ShmInitInfo, ShmUpdateInfo]):  # type: ignore[misc]
    """Weight transport of agent-rft. It receives buckets by shared memory or by broadcast, and loads them into vLLM.

    As in vLLM's NCCL transport, buckets are loaded between `begin_reload` and `finish_reload`.
    """

    init_info_cls = ShmInitInfo
    update_info_cls = ShmUpdateInfo

    unloaded_parameters: Sequence[str] = ()
    """Names of the parameters for which the last update had no weights, such as those of a vision tower."""
    _broadcast: BroadcastGroup | None = None
    _checksum = 0
    _missed_names: frozenset[str] = frozenset()
    _copies: DirectCopies
    _unloaded_names: dict[int, str]
    """Names of tensors in the current bucket that no loader has received yet, keyed by memory address."""

    def init_transfer_engine(self, init_info: ShmInitInfo) -> None:
        """Join the broadcast group in `init_info`, if there is one. A second call replaces the group."""
        self.shutdown()
        if init_info.size:
            rank = init_info.rank + self.parallel_config.rank
            self._broadcast = BroadcastGroup(init_info.address, rank, init_info.size, torch.device(self.device))

    def start_weight_update(self) -> None:
        begin_reload(self.model)
        self._checksum, self._missed_names, self._unloaded_names = 0, frozenset(), {}
        for module in self.model.modules():
            held: Any
            for held in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                loader = getattr(held, "weight_loader", None)
                if loader and not hasattr(loader, "records_loads"):  # vLLM reuses parameters in each update
                    held.weight_loader = self._record_loads(loader)

    def _record_loads(self, loader: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a parameter's loader to record the loaded tensors.

        The wrapper keeps the loader's name and sets `__wrapped__`, because vLLM reads both.
        """

        @wraps(loader)
        def record_and_load(*arguments: Any, **named: Any) -> Any:
            for value in (*arguments, *named.values()):
                if isinstance(value, torch.Tensor) and not value.is_meta:
                    self._unloaded_names.pop(value.data_ptr(), None)
            with self._copies.skip_interception():
                return loader(*arguments, **named)

        record_and_load.records_loads = True  # type: ignore[attr-defined]
        return record_and_load

    def last_update_report(self) -> tuple[int, list[str]]:
        """Return the sum of the checksums of the last update, and the names of tensors that no parameter received."""
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
        self._unloaded_names = {tensor.data_ptr(): name for name, tensor in tensors}
        self._copies = DirectCopies(self.model)
        with self._copies:
            self.model.load_weights(self._copies.record_names(tensors))
        self._checksum = (self._checksum + number) & MASK
        self._missed_names |= set(self._unloaded_names.values()) - self._copies.copied

    def finish_weight_update(self) -> None:
        unloaded = find_unloaded_layers(self.model)
        finish_reload(self.model, self.model_config)
        parameters = dict(self.model.named_parameters())  # a tied parameter has one of its names
        self.unloaded_parameters = [name for name in parameters if name.rpartition(".")[0] in unloaded]

    def shutdown(self) -> None:
        if (before := self._broadcast) is not None:
            self._broadcast = None
            before.close()
