"""Bounds for clients: the share of places that one owner (a key, an address) may take, and deadlines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agent_rft.wire.errors import ApiError


class Shares:
    """`total` places, of which one owner takes at most `share`: by default half, rounded up."""

    def __init__(self, total: int, share: int | None = None) -> None:
        self._free = total
        self._share = -(-total // 2) if share is None else share
        self._taken: Counter[str] = Counter()

    def take(self, owner: str, count: int = 1) -> bool:
        """Takes places for `owner` and returns True, or returns False if there are not enough."""
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
    def of(self, owner: str, refusal: ApiError) -> Iterator[Callable[[int], None]]:
        """Gives a function that takes places or raises `refusal`; the block's end gives them back."""
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
    """Seconds, unless the name says otherwise."""

    headers_s: float = 20.0
    """From the connection, or from a request's first byte, to the end of its headers."""
    body_s: float = 120.0
    """For a whole body other than an upload."""
    upload_idle_s: float = 60.0
    """Without any data of an upload."""
    upload_bytes_per_s: float = 16_384.0
    """An upload must be this fast on average, after `upload_idle_s`."""
    unread_s: float = 60.0
    """Without progress of an answer that the client does not read."""
    rest_s: float = 10.0
    """For the rest of a body that was refused."""


DEADLINES = Deadlines()
