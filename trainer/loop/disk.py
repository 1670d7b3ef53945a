"""A full disk pauses the job, which says so, instead of losing what it was about to write."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agent_rft.events import DiskFreed, DiskFull
from agent_rft.protocols import EventSink

T = TypeVar("T")
FULL = {errno.ENOSPC, errno.EDQUOT}
LOOK_EVERY_S = 10.0
PATIENCE_S = 24 * 3600.0


class Disk:
    """The disk of a run folder. `sleep` takes seconds."""

    def __init__(self, sink: EventSink, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._sink = sink
        self._sleep = sleep
        self._waiting = 0
        self._stopping = False

    def stop(self) -> None:
        """Wait no longer: what cannot be written fails."""
        self._stopping = True

    async def written(self, write: Callable[[], Awaitable[T]]) -> T:
        """The result of `write`, which is called again while the disk is full.

        Raises:
            OSError: It cannot be written for another reason, or the disk stayed full for PATIENCE_S.
        """
        waited_s = 0.0
        while True:
            try:
                result = await write()
            except OSError as error:
                if error.errno not in FULL or self._stopping or waited_s >= PATIENCE_S:
                    raise
                if not waited_s:
                    self._began()
                await self._sleep(LOOK_EVERY_S)
                waited_s += LOOK_EVERY_S
            else:
                if waited_s:
                    self._ended()
                return result

    def _began(self) -> None:
        self._waiting += 1
        if self._waiting == 1:
            self._sink.emit(DiskFull())

    def _ended(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._sink.emit(DiskFreed())
