"""Who runs in the engine and who waits in it: a few requests stand behind the running ones, so that no slot is empty
while an answer travels out and the next request in.

The engine starts requests in the order in which they came, so the first `count` of those inside are the running ones.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Slot:
    """One request's place; `begun` is when it got to run (`time.monotonic`)."""

    request_id: str
    begun: float


class Slots:
    """Of one engine. Bounds nothing: whoever takes a slot is inside."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = count
        self._behind: deque[Slot] = deque()

    @contextmanager
    def take(self, request_id: str) -> Iterator[Slot]:
        """A place for as long as the block runs, behind those who came before."""
        slot = Slot(request_id, time.monotonic())
        if self._free:
            self._free -= 1
        else:
            self._behind.append(slot)
        try:
            yield slot
        finally:
            if slot in self._behind:
                self._behind.remove(slot)
            elif self._behind:
                self._behind.popleft().begun = time.monotonic()
            else:
                self._free += 1

    @property
    def used(self) -> int:
        return self.count - self._free

    @property
    def behind(self) -> list[str]:
        """Requests that wait, by their ids."""
        return [slot.request_id for slot in self._behind]
