"""CPU offload of a rank's GPU memory: moves the memory of all tensors to host memory and back.

The storages of tensors are moved, not the tensor objects. Views into DeepSpeed's flat buffers therefore stay views, and
references in the optimizer's state stay valid. This works for every ZeRO stage, for adapters and for a frozen reference
model.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from agent_rft.trainer.learner.host_buffer import HostBuffer, copy_bytes

FREE_MEMORY_TIMEOUT_S = 60.0
"""Seconds for which `reload` waits for free GPU memory. The memory of a killed process is not freed immediately."""
FREE_MEMORY_POLL_S = 0.5
MAX_NEW_BYTES = 64 * 2**20
"""Device memory that may have been allocated since the last search for tensors without a new search. It stays on the
device."""

FreeBytes = Callable[[], int]
AllocatedBytes = Callable[[], int]


def free_gpu_bytes() -> int:
    return torch.cuda.mem_get_info()[0]


class CpuOffload:
    """Moves all tensors of this process on `device` to host memory and back.

    The tensors cannot be used between `offload` and `reload`. During that time, `buffer` holds their contents, and must
    not be used for anything else. `allocated_bytes` returns the size of all tensors on the device.
    """

    def __init__(
        self,
        device: torch.device,
        buffer: HostBuffer,
        free_bytes: FreeBytes = free_gpu_bytes,
        wait: Callable[[float], None] = time.sleep,
        allocated_bytes: AllocatedBytes = torch.cuda.memory_allocated,
    ) -> None:
        self._device = device
        self._buffer = buffer
        self._free_bytes = free_bytes
        self._wait = wait
        self._tensors = DeviceTensors(device, allocated_bytes)
        self._offloaded: list[tuple[torch.UntypedStorage, Tensor]] = []

    @property
    def num_bytes(self) -> int:
        """Number of offloaded bytes."""
        return sum(copy.nbytes for _, copy in self._offloaded)

    def offload(self) -> None:
        """Copy all storages on the device to host memory, and free their device memory."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()  # other streams may still use them
        storages = self._tensors.find_storages()
        copies = self._buffer.allocate_slices([storage.nbytes() for storage in storages])
        self._offloaded = list(zip(storages, copies, strict=True))
        copy_bytes((_view_bytes(storage), copy) for storage, copy in self._offloaded)
        for storage in storages:
            storage.resize_(0)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def reload(self) -> None:
        """Allocate the storages on the device again, and restore their contents.

        Raises:
            torch.OutOfMemoryError: The device still has too little free memory after FREE_MEMORY_TIMEOUT_S.
        """
        polls, needed = int(FREE_MEMORY_TIMEOUT_S / FREE_MEMORY_POLL_S), self.num_bytes
        while polls and self._free_bytes() < needed:
            self._wait(FREE_MEMORY_POLL_S)
            polls -= 1
        for storage, copy in self._offloaded:
            storage.resize_(copy.nbytes)
        copy_bytes((copy, _view_bytes(storage)) for storage, copy in self._offloaded)
        self._offloaded = []


class DeviceTensors:
    """The tensors of this process on `device`, remembered from one search to the next.

    DeepSpeed does not list its tensors: they are in many attributes, which differ by stage. They are therefore searched
    for among all objects of the process. In a rank with 500,000 objects, this took 0.15 s of CPU time, and `gc.collect`
    another 0.27 s, whatever the model's size. Most tensors, such as weights and Adam's moments, exist until the job
    ends. A new search is needed only if the device has more memory allocated than the remembered tensors use.
    """

    def __init__(self, device: torch.device, allocated_bytes: AllocatedBytes) -> None:
        self._device = device
        self._allocated_bytes = allocated_bytes
        self._known: list[weakref.ref[Tensor]] = []
        self._other_bytes = 0
        """Allocated memory that no tensor of Python uses, such as the work space of matrix multiplications."""

    def find_storages(self) -> list[torch.UntypedStorage]:
        """Return each resizable storage on the device that a tensor of this process uses.

        New tensors of at most MAX_NEW_BYTES in total may be missing.
        """
        storages = self._storages_of(tensor for known in self._known if (tensor := known()) is not None)
        if self._allocated_bytes() - _total_bytes(storages) <= self._other_bytes + MAX_NEW_BYTES and self._known:
            return storages
        gc.collect()  # frees unused tensors instead of returning them
        tensors = [tensor for tensor in gc.get_objects() if issubclass(type(tensor), torch.Tensor)]
        self._known = [weakref.ref(tensor) for tensor in tensors if tensor.device.type == self._device.type]
        storages = self._storages_of(tensors)
        self._other_bytes = max(0, self._allocated_bytes() - _total_bytes(storages))
        return storages

    def _storages_of(self, tensors: Iterable[Tensor]) -> list[torch.UntypedStorage]:
        found: dict[int, torch.UntypedStorage] = {}
        for tensor in tensors:
            if tensor.device.type == self._device.type and not tensor.is_sparse:
                storage = tensor.untyped_storage()
                if storage.nbytes() and storage.resizable():
                    found[storage.data_ptr()] = storage
        return list(found.values())


def _view_bytes(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _total_bytes(storages: Iterable[torch.UntypedStorage]) -> int:
    return sum(storage.nbytes() for storage in storages)
