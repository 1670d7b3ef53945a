"""Limits for clients: deadlines, and quotas for owners (API keys or IP addresses)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agent_rft.wire.api_errors import ApiError


class OwnerQuota:
    """Quota of `total` units, such as connections or bytes. One owner may hold at most `share` units at a time.

    The default for `share` is half of `total`, rounded up. Threads may use a quota concurrently.
    """

    def __init__(self, total: int, share: int | None = None) -> None:
        self._free = total
        self._share = -(-total // 2) if share is None else share
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, owner: str, count: int = 1) -> bool:
        """Take `count` units for `owner` and return True. Return False if `owner` cannot get that many."""
        with self._lock:
            if count > min(self._free, self._share - self._taken[owner]):
                return False
            self._free -= count
            self._taken[owner] += count
            return True

    def give_back(self, owner: str, count: int = 1) -> None:
        with self._lock:
            self._free += count
            self._taken[owner] -= count
            if not self._taken[owner]:
                del self._taken[owner]

    @contextmanager
    def hold(self, owner: str, refusal: ApiError) -> Iterator[Callable[[int], None]]:
        """Context manager that yields a function `take(count)`, which takes units for `owner` or raises `refusal`.

        On exit, all taken units are returned to the quota.
        """
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if not self.take(owner, count):
                raise refusal
            taken += count

        try:
            yield take
        finally:
            self.give_back(owner, taken)


# -- deadlines ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Deadlines for clients, in seconds."""

    headers_s: float = 20.0
    """Maximum time to receive a request's headers."""
    body_s: float = 120.0
    """Maximum time to receive a complete body, except for uploads."""
    upload_idle_s: float = 60.0
    """Maximum pause during an upload."""
    upload_bytes_per_s: float = 16_384.0
    """Minimum average bytes per second of an upload, after the first `upload_idle_s` seconds."""
    unread_s: float = 60.0
    """Time within which the client must read at least one byte of a pending response."""
    rest_s: float = 10.0
    """Maximum time to receive the rest of a request body after the response was sent."""


DEADLINES = Deadlines()
