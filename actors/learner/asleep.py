"""A rank's memory on its device, moved to the memory of its node and back, whatever tensors it is made of.

Not tensors are moved but their storages: views into DeepSpeed's flat buffers stay views of them, and every address in
the optimizer's state stays valid. So it works for each stage of ZeRO, for adapters and for a frozen start model.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import torch

ROOM_TIMEOUT_S = 60.0
"""How long to wait on waking for the memory of a process that was killed; a driver frees it soon after."""
ROOM_POLL_S = 0.5

FreeBytes = Callable[[], int]
Allocate = Callable[[int], torch.UntypedStorage]
"""Allocates host memory of this many bytes."""


def _free_gpu_bytes() -> int:
    return torch.cuda.mem_get_info()[0]


def pageable(num_bytes: int) -> torch.UntypedStorage:
    return torch.empty(num_bytes, dtype=torch.uint8).untyped_storage()


class Asleep:
    """What of this process's tensors on `device` has left it. Between `leave` and `come_back` none may be used."""

    def __init__(
        self,
        device: torch.device,
        free_bytes: FreeBytes = _free_gpu_bytes,
        wait: Callable[[float], None] = time.sleep,
        allocate: Allocate = pageable,
    ) -> None:
        self._device = device
        self._free_bytes = free_bytes
        self._wait = wait
        self._allocate = allocate
        self._left: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []

    @property
    def num_bytes(self) -> int:
        """The bytes that have left the device."""
        return sum(copy.nbytes() for _, copy in self._left)

    def leave(self) -> None:
        """Copy all storages on the device to host memory, and free them there."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()  # other streams may still use them
        for storage in _storages(self._device):
            copy = self._allocate(storage.nbytes())
            copy.copy_(storage)
            storage.resize_(0)
            self._left.append((storage, copy))
        self._return_freed()

    def come_back(self) -> None:
        """Allocate the storages again, and fill them.

        Raises:
            torch.OutOfMemoryError: There is no room for them within ROOM_TIMEOUT_S.
        """
        polls, needed = int(ROOM_TIMEOUT_S / ROOM_POLL_S), self.num_bytes
        while polls and self._free_bytes() < needed:
            self._wait(ROOM_POLL_S)
            polls -= 1
        for storage, copy in self._left:
            storage.resize_(copy.nbytes())
            storage.copy_(copy)
        self._left = []

    def _return_freed(self) -> None:
        """Return to the device what torch keeps for later allocations."""
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def _storages(device: torch.device) -> list[torch.UntypedStorage]:
    """Each storage on the device that a tensor of this process uses and that can be resized."""
    found: dict[int, torch.UntypedStorage] = {}
    for tensor in gc.get_objects():
        if issubclass(type(tensor), torch.Tensor) and tensor.device.type == device.type and not tensor.is_sparse:
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage.resizable():
                found[storage.data_ptr()] = storage
    return list(found.values())
