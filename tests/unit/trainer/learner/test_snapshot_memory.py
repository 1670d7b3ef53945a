"""A rank's snapshots share their memory, so none is taken while the one before is written."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import pytest
import torch

from agent_rft.trainer.learner.host_buffer import HostBuffer
from agent_rft.trainer.learner.optimizer_state import Snapshot, SnapshotMemory

WAIT_S = 20.0


class WatchedLock:
    """A lock that reports when a thread has to wait for it."""

    def __init__(self) -> None:
        self.is_awaited = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.is_awaited.set()
            self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()


def take(memory: SnapshotMemory, value: int) -> int:
    """Take a snapshot whose tensors are full of `value`; returns where those of the state are."""
    tensors = {"weight": torch.full((1000,), value)}
    copied: list[int] = []

    def copy(shards: HostBuffer, state: HostBuffer) -> Snapshot:
        snapshot = Snapshot([shards.copy_tensors(tensors)], state.copy_tensors(tensors), {"step": value})
        copied.append(snapshot.state["weight"].data_ptr())
        return snapshot

    memory.take(copy)
    return copied[0]


def values(snapshot: Snapshot) -> set[int]:
    [shard] = snapshot.shards
    return {*shard["weight"].tolist(), *snapshot.state["weight"].tolist(), snapshot.progress["step"]}


def test_a_snapshot_waits_for_the_write_of_the_one_before_and_takes_its_memory() -> None:
    lock = WatchedLock()
    memory = SnapshotMemory(None, lock)
    first = take(memory, 1)
    with ThreadPoolExecutor(1) as pool:
        with memory.lock_for_writing() as snapshot:
            second = pool.submit(take, memory, 2)
            assert lock.is_awaited.wait(WAIT_S)
            assert values(snapshot) == {1}
        assert second.result(WAIT_S) == first
    with memory.lock_for_writing() as snapshot:
        assert values(snapshot) == {2}


def test_a_snapshot_that_could_not_be_written_can_be_written_again() -> None:
    memory = SnapshotMemory(None)
    take(memory, 1)
    with pytest.raises(OSError, match="disk full"), memory.lock_for_writing():
        raise OSError("disk full")
    with memory.lock_for_writing() as snapshot:
        assert values(snapshot) == {1}
