"""The LoRA adapters of one engine, and the line of each job that shares it.

There are never more adapters than slots, and none is removed while a request uses it.

vLLM would remove the least recently used adapter by itself, load it again in the middle of a step, and end if its
folder is gone or damaged. Here each adapter is loaded before its first request and removed after its last.
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
from agent_rft.trainer.learner.layout import Layout


class AdapterHost(Protocol):
    """What is needed of vLLM's AsyncLLM."""

    async def add_lora(self, request: Any) -> bool: ...

    async def remove_lora(self, lora_id: int) -> bool: ...


@dataclass(slots=True, eq=False)
class Adapter:
    """A loaded adapter. `request` is vLLM's LoRARequest; loading it kept the engine from sampling for `load_s`."""

    name: str
    request: Any
    load_s: float
    num_requests: int = 0


class Adapters:
    """The adapters in an engine's `num_slots` slots.

    Where all slots are taken, a further adapter replaces the least recently used one: that one gets no new requests,
    and the further one waits until its last request has ended. They come in the order in which they were asked for.
    """

    def __init__(self, host: AdapterHost, num_slots: int) -> None:
        self._host = host
        self._num_slots = num_slots
        self._current: dict[str, Adapter] = {}
        """By name, the least recently used first."""
        self._retired: list[Adapter] = []
        """Get no new requests; the oldest first."""
        self._staying: list[Adapter] = []
        """The newest version of each job."""
        self._ids = itertools.count(1)
        self._turn = asyncio.Lock()
        self._unused = asyncio.Event()

    async def load(self, name: str, folder: Path) -> Adapter:
        """The adapter of this name, loaded from `folder` if it is not there; afterwards the folder is not needed.

        Enter `used` before anything else is awaited: then no other adapter can have taken its place.

        Raises:
            Exception: Of the host: the adapter is damaged or does not fit the model, or the engine died.
        """
        async with self._turn:
            if name not in self._current:
                await self._make_room()
                self._current[name] = await self._added(name, folder)
            return self._current[name]

    async def update(self, name: str, folder: Path) -> Adapter:
        """Load a job's next version, as `load`; it stays until it is given up.

        It waits if versions stay in all slots, so there must be one more.
        """
        async with self._turn:
            await self._make_room()
            adapter = await self._added(name, folder)
            self._staying.append(adapter)
            return adapter

    def give_up(self, adapter: Adapter) -> None:
        """Let a version go, after its last request."""
        self._staying.remove(adapter)
        self._retired.append(adapter)
        self._unused.set()

    @contextmanager
    def used(self, adapter: Adapter) -> Iterator[Any]:
        """The LoRARequest of an adapter, which stays for as long as the block runs."""
        if self._current.get(adapter.name) is adapter:
            self._current[adapter.name] = self._current.pop(adapter.name)
        adapter.num_requests += 1
        try:
            yield adapter.request
        finally:
            adapter.num_requests -= 1
            if not adapter.num_requests:
                self._unused.set()

    async def _added(self, name: str, folder: Path) -> Adapter:
        from vllm.lora.request import LoRARequest

        lora_id = next(self._ids)
        # Its name is in the hash of cached blocks.
        request = LoRARequest(f"{name}#{lora_id}", lora_id, str(folder))
        started = time.monotonic()
        try:
            await self._host.add_lora(request)
        except BaseException:  # cancelled, too
            await self._host.remove_lora(lora_id)  # it can be registered, and half of it loaded
            raise
        return Adapter(name, request, time.monotonic() - started)

    async def _make_room(self) -> None:
        while True:
            self._unused.clear()
            for adapter in [adapter for adapter in self._retired if not adapter.num_requests]:
                self._retired.remove(adapter)
                await self._host.remove_lora(adapter.request.lora_int_id)
            if len(self._current) + len(self._retired) + len(self._staying) < self._num_slots:
                return
            idle = [adapter for adapter in self._current.values() if not adapter.num_requests]
            if idle or (self._current and not self._retired):
                least = idle[0] if idle else next(iter(self._current.values()))
                self._retired.append(self._current.pop(least.name))
            else:
                await self._unused.wait()


# -- lines -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Line:
    """The version with which a job's requests begin, its adapter, and the buckets of the next one.

    `lora` is the shape of its adapters; None: each version has all weights. Each of `staged` is in shared memory, with
    its layout and the checksum of what is there.
    """

    job: str
    lora: AdapterConfig | None = None
    version: int = 0
    adapter: Adapter | None = None
    staged: list[tuple[SharedFile, Layout, int]] = field(default_factory=list)
    sampled_tokens: int = 0

    @property
    def salt(self) -> str:
        """Requests reuse the cache blocks of others with the same salt only."""
        return f"{self.job}:{self.version}"

    def stage(self, shm: Path, data: NDArray[np.uint8], layout: Layout) -> None:
        """Put one bucket into shared memory, and take the checksum of what is there.

        Raises:
            EngineFailed: shared memory is full or missing.
        """
        from agent_rft.actors.weights.bucket import bytes_of, checksum

        try:
            file = SharedFile(shm, data)
        except OSError as error:
            what = f"cannot put {data.nbytes} bytes of weights into"
            raise EngineFailed(f"{what} {shm}: {error}", public=f"{what} shared memory") from error
        self.staged.append((file, layout, checksum(bytes_of(file.path, data.nbytes))))

    def unstage(self) -> None:
        """Discard the staged buckets."""
        for file, *_ in self.staged:
            file.remove()
        self.staged = []
