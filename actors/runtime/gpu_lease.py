"""Time-sharing of devices between engines and a learner: one of them computes while the other is offloaded.

Offloading frees device memory and keeps the required state in host memory. The learner acquires the devices
automatically when it computes. `Learner.release_devices` returns them to the engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol


class Offloadable(Protocol):
    """Protocol of engines and learners that can be offloaded. They start in the loaded state."""

    async def offload(self) -> None:
        """Offload to host memory; return when the device memory is free."""

    async def reload(self) -> None:
        """Move the offloaded state back to device memory; return when all of the state is there."""


class OffloadableEngines(Offloadable, Protocol):
    """Protocol of engines that can be offloaded."""

    async def offload(self, discards: bool = False) -> None:
        """Offload to host memory; return when the device memory is free.

        With `discards`, the weights may be discarded, because an update will probably replace them. After `reload`,
        requests wait until weights are loaded.
        """


class GpuLease:
    """Ownership of the shared devices. The learner owns them at first. After a failed reload, nobody owns them."""

    def __init__(self, engines: OffloadableEngines, learner: Offloadable) -> None:
        self._engines = engines
        self._learner = learner
        self._owner: Offloadable | None = learner
        self._lock = asyncio.Lock()

    async def give_to_learner(self, *, updates: bool = False) -> None:
        """Give the devices to the learner; do nothing if the learner already has them.

        If the learner `updates` its weights, the engines may discard theirs.
        """
        await self._switch(partial(self._engines.offload, updates), self._learner)

    async def give_to_engines(self) -> None:
        """Give the devices to the engines; do nothing if the engines already have them."""
        await self._switch(self._learner.offload, self._engines)

    async def give_to_restarted_learner(self) -> None:
        """Give the devices to a learner that was restarted after its processes died.

        The new processes are already loaded, so only the engines are offloaded.
        """
        async with self._lock:
            if self._owner is self._engines:
                await self._engines.offload()
            self._owner = self._learner

    async def _switch(self, offload_other: Callable[[], Awaitable[None]], target: Offloadable) -> None:
        async with self._lock:
            if self._owner is target:
                return
            if self._owner is not None:
                await offload_other()
            self._owner = None
            await target.reload()
            self._owner = target
