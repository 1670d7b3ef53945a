"""A host buffer keeps its memory between uses, grows when it must, and unlocks what it locked."""

from __future__ import annotations

import gc
from unittest import TestCase

import numpy as np
import torch

from agent_rft.trainer.learner.host_buffer import ALIGNMENT, HostBuffer, Unlock


class Locks:
    """Page-locks nothing, and records what is locked: the number of bytes by address."""

    def __init__(self, fails: bool = False) -> None:
        self.locked: dict[int, int] = {}
        self.calls = 0
        self._fails = fails

    def __call__(self, address: int, num_bytes: int) -> Unlock | None:
        self.calls += 1
        if self._fails:
            return None
        self.locked[address] = num_bytes
        return lambda: self.locked.pop(address)


def test_slices_are_aligned_do_not_overlap_and_hold_any_dtype() -> None:
    sizes = [3, 0, 8, ALIGNMENT, 1]
    slices = HostBuffer().allocate_slices(sizes)
    for number, each in enumerate(slices):
        each.fill_(number)
    assert [each.tolist() for each in slices] == [[number] * size for number, size in enumerate(sizes)]
    first, *starts = [each.data_ptr() for each in slices if len(each)]
    assert all((start - first) % ALIGNMENT == 0 for start in starts)
    assert slices[2].view(torch.float64).shape == (1,)


def test_memory_is_reused_while_it_suffices_and_locked_once() -> None:
    locks = Locks()
    buffer = HostBuffer(locks)
    [first] = buffer.allocate_slices([1000])
    [second] = buffer.allocate_slices([10])
    assert second.data_ptr() == first.data_ptr()
    assert locks.calls == 1 and list(locks.locked.values()) == [1024]


def test_more_memory_replaces_the_old_one_and_has_slack_for_the_next_time() -> None:
    locks = Locks()
    buffer = HostBuffer(locks, slack=0.5)
    buffer.allocate_slices([1 << 20])
    buffer.allocate_slices([1 << 21])
    assert list(locks.locked.values()) == [3 << 20]
    buffer.allocate_slices([3 << 20])
    assert locks.calls == 2


def test_memory_stays_locked_while_a_slice_is_used_and_no_longer() -> None:
    locks = Locks()
    buffer = HostBuffer(locks)
    [held] = buffer.allocate_slices([1000])
    array = held.numpy()
    del buffer, held
    gc.collect()
    assert locks.locked
    del array
    assert not locks.locked


def test_memory_that_cannot_be_locked_is_used_anyway_with_one_warning() -> None:
    locks = Locks(fails=True)
    buffer = HostBuffer(locks)
    with TestCase().assertLogs("agent_rft.trainer.learner.host_buffer") as logged:
        for size in (1000, 2000, 3000):
            [each] = buffer.allocate_slices([size])
            assert len(each.fill_(1)) == size
    assert locks.calls == 1
    assert [record.levelname for record in logged.records] == ["WARNING"]


def test_copies_equal_their_tensors_whatever_their_dtype_layout_and_size() -> None:
    tensors = {
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "scalar": torch.tensor(7),
        "bfloat16": torch.arange(5).bfloat16(),
        "empty": torch.empty(0, 4),
        "bool": torch.tensor([True, False]),
    }
    copies = HostBuffer().copy_tensors(tensors)
    assert copies.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert copies[name].dtype == tensor.dtype and torch.equal(copies[name], tensor)
    tensors["transposed"].zero_()
    np.testing.assert_array_equal(copies["transposed"].numpy(), [[0, 3], [1, 4], [2, 5]])
