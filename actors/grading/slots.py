"""The slots of trials: what starts a process or asks a model or an endpoint takes one, so a process runs few at a time.

All trial routes share the slots, and a grader takes as many as it has such parts: neither the shape of a grader nor the
number of samples gets past the limit. Who gets none waits, for a bounded time, in a queue of bounded length.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

from actors.graders.base import Grader
from trainer.types import Grade

WAIT_S = 120.0
"""How long a part of a trial may wait for a slot."""
MAX_WAITING = 1_000
SHARE = 0.75
"""Part of the slots, and of the queue, that one key may take: the rest is free for the others."""

Slot = Callable[[], AbstractAsyncContextManager[None]]
"""Waits for a slot and holds it."""


class NoSlot(Exception):
    """All slots are taken, and the queue is full or the wait was too long."""


class TrialSlots:
    """`limit` slots. A free one goes to the waiting key that has the fewest; those with as many take turns."""

    def __init__(self, limit: int, *, max_waiting: int = MAX_WAITING, wait_s: float = WAIT_S) -> None:
        self.limit = limit
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def num_held(self) -> int:
        return self._held.total()

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def slot(self, key: str) -> AsyncIterator[None]:
        """Hold a slot for `key`, the id of an API key.

        Raises:
            NoSlot: there is none in time.
        """
        await self._acquire(key)
        try:
            yield
        finally:
            self._release(key)

    async def _acquire(self, key: str) -> None:
        queue = self._waiting.get(key, ())
        if self.num_waiting >= self._max_waiting or len(queue) >= _share(self._max_waiting):
            raise NoSlot("too many wait already")
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(mine)
        self._grant()
        granted = False
        try:
            async with asyncio.timeout(self._wait_s):
                await mine
            granted = True
        except TimeoutError:
            raise NoSlot(f"none was free for {self._wait_s:g} s") from None
        finally:
            if not granted and mine.cancelled():
                self._leave(key, mine)
            elif not granted:  # the slot came at the same moment
                self._release(key)

    def _release(self, key: str) -> None:
        self._held[key] -= 1
        self._held += Counter()  # without keys that hold none
        self._grant()

    def _grant(self) -> None:
        while self.num_held < self.limit:
            ready = [key for key in self._waiting if self._held[key] < _share(self.limit)]
            if not ready:
                return
            key = min(ready, key=lambda key: self._held[key])
            queue = self._waiting.pop(key)
            waiter = queue.popleft()
            if not waiter.cancelled():  # its task ends at this moment
                waiter.set_result(None)
                self._held[key] += 1
            if queue:
                self._waiting[key] = queue  # now the last

    def _leave(self, key: str, waiter: asyncio.Future[None]) -> None:
        queue = self._waiting.get(key, deque())
        with suppress(ValueError):  # `_grant` took it out
            queue.remove(waiter)
        if not queue:
            self._waiting.pop(key, None)


def _share(count: int) -> int:
    return math.ceil(count * SHARE)


class InSlot:
    """A grader whose grades each wait for a slot."""

    def __init__(self, grader: Grader, slot: Slot) -> None:
        self._grader = grader
        self._slot = slot

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        async with self._slot():
            return await self._grader.grade(sample, item, trace_id)

    async def close(self) -> None:
        await self._grader.close()


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Do the work to its end, also when this is cancelled meanwhile, which then takes effect."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class OncePerSlot:
    """Graders that each make one grade: what one started has ended before the slot is free again."""

    def __init__(self, make: Callable[[], Grader], slot: Slot) -> None:
        self._make = make
        self._slot = slot

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        async with self._slot():
            grader = self._make()
            try:
                return await grader.grade(sample, item, trace_id)
            finally:
                await _to_its_end(grader.close())

    async def close(self) -> None:
        """Do nothing: each grade has closed its own."""
