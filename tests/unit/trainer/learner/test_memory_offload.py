"""The search for a rank's tensors: which are remembered, and when it searches again."""

from __future__ import annotations

import weakref

import pytest
import torch

from agent_rft.trainer.learner.memory_offload import MAX_NEW_BYTES, DeviceTensors

CPU = torch.device("cpu")


class Device:
    """A device with this much allocated memory."""

    def __init__(self, allocated: int = 1 << 40) -> None:
        self.allocated = allocated

    def allocated_bytes(self) -> int:
        return self.allocated


def finds(tensors: DeviceTensors, tensor: torch.Tensor) -> bool:
    return tensor.data_ptr() in {storage.data_ptr() for storage in tensors.find_storages()}


@pytest.mark.parametrize(("new_bytes", "searches"), [(0, False), (MAX_NEW_BYTES, False), (MAX_NEW_BYTES + 1, True)])
def test_it_searches_again_only_if_the_device_has_much_more_allocated(new_bytes: int, searches: bool) -> None:
    device = Device()
    tensors, old = DeviceTensors(CPU, device.allocated_bytes), torch.ones(10)
    assert finds(tensors, old)  # nothing is known yet
    new = torch.ones(10)
    device.allocated += new_bytes
    assert finds(tensors, new) == searches
    assert finds(tensors, old)


def test_memory_that_no_tensor_uses_causes_one_search() -> None:
    device = Device(allocated=0)
    tensors = DeviceTensors(CPU, device.allocated_bytes)
    tensors.find_storages()
    device.allocated = 1 << 40  # such as the work space of matrix multiplications
    first = torch.ones(10)
    assert finds(tensors, first)
    second = torch.ones(10)
    assert not finds(tensors, second)


def test_a_known_tensor_is_found_in_its_new_memory() -> None:
    """ZeRO-3 gathers small weights into new memory in each step."""
    tensors, weight = DeviceTensors(CPU, Device().allocated_bytes), torch.nn.Parameter(torch.ones(10))
    assert finds(tensors, weight)
    weight.data = torch.ones(20)
    assert finds(tensors, weight)


def test_a_view_is_one_storage_with_its_base() -> None:
    tensors, base = DeviceTensors(CPU, Device().allocated_bytes), torch.ones(10)
    view = base[5:]
    pointers = [storage.data_ptr() for storage in tensors.find_storages()]
    assert pointers.count(base.data_ptr()) == 1 and view.data_ptr() not in pointers


def test_known_tensors_are_freed_when_nothing_else_uses_them() -> None:
    tensors, tensor = DeviceTensors(CPU, Device().allocated_bytes), torch.ones(10)
    assert finds(tensors, tensor)
    freed = weakref.ref(tensor)
    del tensor
    assert freed() is None
    tensors.find_storages()
