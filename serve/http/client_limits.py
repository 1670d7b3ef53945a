"""Limits for clients: shares of a capacity per owner (API key or address), and deadlines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agent_rft.wire.api_errors import ApiError


class OwnerQuota:
    """Capacity of `total` units, of which one owner may hold at most `share`; the default is half, rounded up."""

    def __init__(self, total: int, share: int | None = None) -> None:
        self._free = total
        self._share = -(-total // 2) if share is None else share
        self._taken: Counter[str] = Counter()

    def take(self, owner: str, count: int = 1) -> bool:
        """Take units for `owner` and return True, or return False if there are not enough."""
        if count > min(self._free, self._share - self._taken[owner]):
            return False
        self._free -= count
        self._taken[owner] += count
        return True

    def give_back(self, owner: str, count: int = 1) -> None:
        self._free += count
        self._taken[owner] -= count
        if not self._taken[owner]:
            del self._taken[owner]

    @contextmanager
    def hold(self, owner: str, refusal: ApiError) -> Iterator[Callable[[int], None]]:
        """Context manager that yields a function to take units, which raises `refusal` if there are too few.

        On exit, the units are released.
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
    """Time from the connection, or from a request's first byte, to the end of the headers."""
    body_s: float = 120.0
    """Time for a complete body, except an upload."""
    upload_idle_s: float = 60.0
    """Longest pause in an upload."""
    upload_bytes_per_s: float = 16_384.0
    """Minimum average speed of an upload after `upload_idle_s`, in bytes per second."""
    unread_s: float = 60.0
    """Time in which the client must read some of the response."""
    rest_s: float = 10.0
    """Time for the rest of a request body after the response was sent."""


DEADLINES = Deadlines()
