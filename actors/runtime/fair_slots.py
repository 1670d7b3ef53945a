"""Slots that several keys share: a free one goes to the key that has the fewest."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

Waiter = tuple[int, int, asyncio.Future[None]]
"""Order, arrival number, and the future that is done when the slot is granted."""


class NoSlot(Exception):
    """All slots are taken, and the queue is full or the wait was too long."""


class FairSlots:
    """`limit` slots. A free one goes to the waiting key that has the fewest; those with as many take turns.

    The waiter of a key with the lowest `order` is first, and of those the one that came first. A key gets at most
    `share` of the slots and of the queue, which has room for `max_waiting`; who waits longer than `wait_s` gets none.
    With None there is no limit.
    """

    def __init__(
        self, limit: int, *, share: float = 1.0, max_waiting: int | None = None, wait_s: float | None = None
    ) -> None:
        self.limit = limit
        self._most_held = math.ceil(limit * share)
        self._max_waiting = math.inf if max_waiting is None else max_waiting
        self._longest_queue = math.inf if max_waiting is None else math.ceil(max_waiting * share)
        self._wait_s = wait_s
        self._held: Counter[str] = Counter()
        self._arrivals = count()
        self._waiting: dict[str, list[Waiter]] = {}
        """A heap per key; the key that got a slot last is the last one."""

    @property
    def num_held(self) -> int:
        return self._held.total()

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def of(self, key: str) -> tuple[int, int]:
        """How many slots a key holds, and for how many it waits."""
        return self._held[key], len(self._waiting.get(key, ()))

    @asynccontextmanager
    async def slot(self, key: str, order: int = 0) -> AsyncIterator[None]:
        """Hold a slot for `key`.

        Raises:
            NoSlot: there is none in time.
        """
        await self._acquire(key, order)
        try:
            yield
        finally:
            self._release(key)

    async def _acquire(self, key: str, order: int) -> None:
        queue = self._waiting.get(key, ())
        if self.num_waiting >= self._max_waiting or len(queue) >= self._longest_queue:
            raise NoSlot("too many wait already")
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = order, next(self._arrivals), mine
        heapq.heappush(self._waiting.setdefault(key, []), waiter)
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
                self._leave(key, waiter)
            elif not granted:  # the slot came at the same moment
                self._release(key)

    def _release(self, key: str) -> None:
        self._held[key] -= 1
        self._held += Counter()  # without keys that hold none
        self._grant()

    def _grant(self) -> None:
        while self.num_held < self.limit:
            ready = [key for key in self._waiting if self._held[key] < self._most_held]
            if not ready:
                return
            key = min(ready, key=lambda key: self._held[key])
            queue = self._waiting.pop(key)
            _, _, granted = heapq.heappop(queue)
            if not granted.cancelled():  # its task ends at this moment
                granted.set_result(None)
                self._held[key] += 1
            if queue:
                self._waiting[key] = queue  # now the last

    def _leave(self, key: str, waiter: Waiter) -> None:
        queue = self._waiting.get(key, [])
        if waiter in queue:  # unless `_grant` took it out
            queue.remove(waiter)
            heapq.heapify(queue)
        if not queue:
            self._waiting.pop(key, None)
