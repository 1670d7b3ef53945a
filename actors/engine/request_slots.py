"""Record of the running and the waiting requests in an engine.

The engine has `count` slots, and a request runs in one slot. A few more requests wait inside the engine, so that a slot
is not idle until the next request arrives. The engine starts requests in order of arrival. Therefore the first `count`
requests are running, and later requests wait.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class RequestSlot:
    """One request inside the engine.

    `started` is the time at which the request began to run. While the request waits, `started` is the time at which it
    arrived.
    """

    request_id: str
    started: float


class RequestSlots:
    """The `count` slots of one engine and the requests that use them or wait for them.

    The number of requests is not limited: requests beyond `count` wait. `clock` returns seconds.
    """

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = count
        self._clock = clock
        self._busy_s = self._busy_since = 0.0
        self._num_free = count
        self._waiting: deque[RequestSlot] = deque()

    @contextmanager
    def take(self, request_id: str) -> Iterator[RequestSlot]:
        """Context manager that records a request as running if a slot is free, and otherwise as waiting.

        Waiting requests become running in order of arrival. Entering the context never blocks.
        """
        slot = RequestSlot(request_id, self._clock())
        if not self.num_used:
            self._busy_since = slot.started
        if self._num_free:
            self._num_free -= 1
        else:
            self._waiting.append(slot)
        try:
            yield slot
        finally:
            if slot in self._waiting:
                self._waiting.remove(slot)
            elif self._waiting:
                self._waiting.popleft().started = self._clock()
            else:
                self._num_free += 1
                if not self.num_used:
                    self._busy_s += self._clock() - self._busy_since

    @property
    def num_used(self) -> int:
        return self.count - self._num_free

    @property
    def busy_s(self) -> float:
        """Total seconds during which at least one request was running."""
        return self._busy_s + (self._clock() - self._busy_since if self.num_used else 0.0)
