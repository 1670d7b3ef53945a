"""A rank's memory on its device, moved to the memory of its node and back, whatever tensors it is made of.

Not tensors are moved but their storages: views into DeepSpeed's flat buffers stay views of them, and every address in
the optimizer's state stays valid. So it works for each stage of ZeRO, for adapters and for a frozen start model.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import torch
from torch import Tensor

from agent_rft.trainer.learner.host_buffer import HostBuffer, copy_bytes

ROOM_TIMEOUT_S = 60.0
"""How long to wait on waking for the memory of a process that was killed; a driver frees it soon after."""
ROOM_POLL_S = 0.5

FreeBytes = Callable[[], int]


def _free_gpu_bytes() -> int:
    return torch.cuda.mem_get_info()[0]


class Asleep:
    """What of this process's tensors on `device` has left it. Between `leave` and `come_back` none may be used.

    It leaves for `buffer`, which nothing else may use then.
    """

    def __init__(
        self,
        device: torch.device,
        buffer: HostBuffer,
        free_bytes: FreeBytes = _free_gpu_bytes,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._device = device
        self._buffer = buffer
        self._free_bytes = free_bytes
        self._wait = wait
        self._left: list[tuple[torch.UntypedStorage, Tensor]] = []

    @property
    def num_bytes(self) -> int:
        """The bytes that have left the device."""
        return sum(copy.nbytes for _, copy in self._left)

    def leave(self) -> None:
        """Copy all storages on the device to host memory, and free them there."""
        gc.collect()  # what nothing uses any more is freed, not copied
        if self._device.type == "cuda":
            torch.cuda.synchronize()  # other streams may still use them
        storages = _storages(self._device)
        copies = self._buffer.slices([storage.nbytes() for storage in storages])
        self._left = list(zip(storages, copies, strict=True))
        copy_bytes((_bytes_of(storage), copy) for storage, copy in self._left)
        for storage in storages:
            storage.resize_(0)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

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
            storage.resize_(copy.nbytes)
        copy_bytes((copy, _bytes_of(storage)) for storage, copy in self._left)
        self._left = []


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _storages(device: torch.device) -> list[torch.UntypedStorage]:
    """Each storage on the device that a tensor of this process uses and that can be resized.

    DeepSpeed has no list of all its tensors: they are in many attributes, which differ by stage. The search took 0.15 s
    of CPU time in a rank, which has 500,000 objects, and `gc.collect` another 0.27 s, whatever the model's size.
    """
    found: dict[int, torch.UntypedStorage] = {}
    for tensor in gc.get_objects():
        if issubclass(type(tensor), torch.Tensor) and tensor.device.type == device.type and not tensor.is_sparse:
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage.resizable():
                found[storage.data_ptr()] = storage
    return list(found.values())
