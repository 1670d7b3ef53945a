"""Fair sharing of slots between keys: a free slot goes to the waiting key that holds the fewest slots."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

Waiter = tuple[int, int, asyncio.Future[None]]
"""Entry of the queue: (order, arrival number, future). The future completes when the slot is granted."""


class NoFreeSlot(Exception):
    """No slot is free, and the queue is full or the wait timed out."""


class FairSlots:
    """Semaphore with `limit` slots that are shared fairly between keys.

    - A free slot goes to the waiting key that holds the fewest slots; ties are resolved round-robin.
    - Waiters of one key are served by `order`, lowest first, and then by arrival.
    - A key gets at most the fraction `max_share_per_key` of the slots, and of the queue.
    - `max_waiting` is the maximum length of the queue, and `wait_s` the maximum wait; None means no limit.
    """

    def __init__(
        self,
        limit: int,
        *,
        max_share_per_key: float = 1.0,
        max_waiting: int | None = None,
        wait_s: float | None = None,
    ) -> None:
        self.limit = limit
        self._max_held_per_key = math.ceil(limit * max_share_per_key)
        self._max_waiting = math.inf if max_waiting is None else max_waiting
        self._max_waiting_per_key = math.inf if max_waiting is None else math.ceil(max_waiting * max_share_per_key)
        self._wait_s = wait_s
        self._held: Counter[str] = Counter()
        self._arrivals = count()
        self._waiting: dict[str, list[Waiter]] = {}
        """One heap of waiters per key. When a key gets a slot, its entry moves to the end of this dictionary."""

    @property
    def num_held(self) -> int:
        return self._held.total()

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def count_for(self, key: str) -> tuple[int, int]:
        """Return the number of slots that a key holds, and the number of its waiters."""
        return self._held[key], len(self._waiting.get(key, ()))

    @asynccontextmanager
    async def hold_slot(self, key: str, order: int = 0) -> AsyncIterator[None]:
        """Context manager that holds a slot for `key`.

        Raises:
            NoFreeSlot: The queue is full, or no slot became free in time.
        """
        await self._acquire(key, order)
        try:
            yield
        finally:
            self._release(key)

    async def _acquire(self, key: str, order: int) -> None:
        queue = self._waiting.get(key, ())
        if self.num_waiting >= self._max_waiting or len(queue) >= self._max_waiting_per_key:
            raise NoFreeSlot("the queue is full")
        granted_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = order, next(self._arrivals), granted_future
        heapq.heappush(self._waiting.setdefault(key, []), waiter)
        self._grant()
        granted = False
        try:
            async with asyncio.timeout(self._wait_s):
                await granted_future
            granted = True
        except TimeoutError:
            raise NoFreeSlot(f"no slot became free within {self._wait_s:g} s") from None
        finally:
            if not granted and granted_future.cancelled():
                self._remove_waiter(key, waiter)
            elif not granted:  # granted and cancelled or timed out at the same time
                self._release(key)

    def _release(self, key: str) -> None:
        self._held[key] -= 1
        self._held += Counter()  # remove keys without slots
        self._grant()

    def _grant(self) -> None:
        while self.num_held < self.limit:
            ready = [key for key in self._waiting if self._held[key] < self._max_held_per_key]
            if not ready:
                return
            key = min(ready, key=lambda key: self._held[key])
            queue = self._waiting.pop(key)
            _, _, granted = heapq.heappop(queue)
            if not granted.cancelled():  # its task is being cancelled
                granted.set_result(None)
                self._held[key] += 1
            if queue:
                self._waiting[key] = queue  # move the key to the end

    def _remove_waiter(self, key: str, waiter: Waiter) -> None:
        queue = self._waiting.get(key, [])
        if waiter in queue:  # unless `_grant` has removed it
            queue.remove(waiter)
            heapq.heapify(queue)
        if not queue:
            self._waiting.pop(key, None)
