"""The LoRA adapters of one engine, and the engine's state for each job that uses it.

An engine never holds more adapters than it has slots, and never removes an adapter while a request uses the adapter.

This module loads each adapter before the adapter's first request, and removes it after the last one. Otherwise vLLM
would evict the least recently used adapter and reload it in the middle of a step. vLLM would also exit if the adapter's
folder was gone or damaged.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agent_rft.actors.weights.shared_memory import SharedFile
from agent_rft.errors import EngineFailed
from agent_rft.trainer.learner.adapter import AdapterConfig
from agent_rft.trainer.learner.weight_buckets import BucketLayout


class AdapterHost(Protocol):
    """Part of vLLM's AsyncLLM that loads and removes LoRA adapters."""

    async def add_lora(self, request: Any) -> bool: ...

    async def remove_lora(self, lora_id: int) -> bool: ...


@dataclass(slots=True, eq=False)
class Adapter:
    """A LoRA adapter that an engine has loaded.

    `request` is vLLM's LoRARequest for the adapter. Loading took `load_s` seconds, during which the engine did not
    sample. `num_requests` is the number of running requests that use the adapter.
    """

    name: str
    request: Any
    load_s: float
    num_requests: int = 0


class Adapters:
    """The LoRA adapters in an engine's `num_slots` adapter slots.

    When all slots are taken, a new adapter replaces the least recently used adapter, which gets no new requests. The
    new adapter is loaded once the last request of the replaced adapter has ended. Adapters are loaded in the order of
    the calls.
    """

    def __init__(self, host: AdapterHost, num_slots: int) -> None:
        self._host = host
        self._num_slots = num_slots
        self._current: dict[str, Adapter] = {}
        """Adapters from `load`, by name; the least recently used adapter is first."""
        self._retired: list[Adapter] = []
        """Adapters that get no new requests; the oldest first."""
        self._trained: list[Adapter] = []
        """The newest version of each job."""
        self._ids = itertools.count(1)
        self._load_lock = asyncio.Lock()
        self._may_be_free = asyncio.Event()

    async def load(self, name: str, folder: Path) -> Adapter:
        """Return the adapter `name`; load it from `folder` if it is not loaded yet.

        The folder is not needed after this call. Enter the context manager `use` before the next `await`; otherwise,
        another adapter may replace this one.

        Raises:
            Exception: The adapter is damaged or does not fit the model, or the engine died. The class of the exception
                depends on the AdapterHost.
        """
        async with self._load_lock:
            if name not in self._current:
                await self._free_slot()
                self._current[name] = await self._add_to_engine(name, folder)
            return self._current[name]

    async def load_version(self, name: str, folder: Path) -> Adapter:
        """Load the next version of a job's adapter. The version stays loaded until `release_version`.

        Waits for a free slot. The engine needs one slot for each job, and one more slot for the new version.
        """
        async with self._load_lock:
            await self._free_slot()
            adapter = await self._add_to_engine(name, folder)
            self._trained.append(adapter)
            return adapter

    def release_version(self, adapter: Adapter) -> None:
        """Release a version that `load_version` returned. It is removed after its last request has ended."""
        self._trained.remove(adapter)
        self._retired.append(adapter)
        self._may_be_free.set()

    @contextmanager
    def use(self, adapter: Adapter) -> Iterator[Any]:
        """Context manager that keeps an adapter loaded, and yields the adapter's LoRARequest."""
        if self._current.get(adapter.name) is adapter:
            self._current[adapter.name] = self._current.pop(adapter.name)
        adapter.num_requests += 1
        try:
            yield adapter.request
        finally:
            adapter.num_requests -= 1
            if not adapter.num_requests:
                self._may_be_free.set()

    async def _add_to_engine(self, name: str, folder: Path) -> Adapter:
        from vllm.lora.request import LoRARequest

        lora_id = next(self._ids)
        # The name is part of the hash of cached blocks, so it must be unique.
        request = LoRARequest(f"{name}#{lora_id}", lora_id, str(folder))
        started = time.monotonic()
        try:
            await self._host.add_lora(request)
        except BaseException:  # on cancellation too
            await self._host.remove_lora(lora_id)  # it may be registered and partly loaded
            raise
        return Adapter(name, request, time.monotonic() - started)

    async def _free_slot(self) -> None:
        while True:
            self._may_be_free.clear()
            for adapter in [adapter for adapter in self._retired if not adapter.num_requests]:
                self._retired.remove(adapter)
                await self._host.remove_lora(adapter.request.lora_int_id)
            if len(self._current) + len(self._retired) + len(self._trained) < self._num_slots:
                return
            idle = [adapter for adapter in self._current.values() if not adapter.num_requests]
            if idle or (self._current and not self._retired):
                oldest = idle[0] if idle else next(iter(self._current.values()))
                self._retired.append(self._current.pop(oldest.name))
            else:
                await self._may_be_free.wait()


# -- tenants -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class EngineTenant:
    """State of one job in an engine.

    `version` and `adapter` are used for new requests of the job. `lora` is the shape of the job's adapters, or None if
    the job trains all weights. `staged_buckets` contains (file in shared memory, layout, checksum) for each bucket of
    the next version.
    """

    job: str
    lora: AdapterConfig | None = None
    version: int = 0
    adapter: Adapter | None = None
    staged_buckets: list[tuple[SharedFile, BucketLayout, int]] = field(default_factory=list)
    sampled_tokens: int = 0

    @property
    def cache_salt(self) -> str:
        """Cache salt of the job's new requests: vLLM reuses cache blocks only for requests with the same salt."""
        return f"{self.job}:{self.version}"

    def stage(self, shm: Path, data: NDArray[np.uint8], layout: BucketLayout) -> None:
        """Write one bucket of the next version to shared memory, and compute the checksum of the written bytes.

        Raises:
            EngineFailed: Shared memory is full or missing.
        """
        from agent_rft.actors.weights.weight_bucket import compute_checksum, map_bytes

        try:
            file = SharedFile(shm, data)
        except OSError as error:
            what = f"cannot write {data.nbytes} bytes of weights to"
            raise EngineFailed(f"{what} {shm}: {error}", public_message=f"{what} shared memory") from error
        self.staged_buckets.append((file, layout, compute_checksum(map_bytes(file.path, data.nbytes))))

    def unstage(self) -> None:
        """Discard the staged buckets."""
        for file, *_ in self.staged_buckets:
            file.remove()
        self.staged_buckets = []
