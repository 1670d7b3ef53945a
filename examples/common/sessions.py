"""What a server of an example keeps for each rollout, opened at its session's start and closed at its end.

At most `max_open` are open. One that nobody has used for `idle_s` is closed, so a lost end costs a place for a bounded
time. Several threads may call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Final, Generic, TypeVar

IDLE_S: Final = 3_600.0
"""Far longer than a rollout of these jobs is without a call: at least twice their `limits.rollout_timeout_s`."""
Kept = TypeVar("Kept")


class Full(Exception):
    """All places are taken."""


class Gone(LookupError):
    """The rollout has no session: it has ended, or was never opened."""


@dataclass(slots=True)
class Counts:
    """Since the start; `idle` are those of `closed` that were closed because nobody used them."""

    opened: int = 0
    closed: int = 0
    idle: int = 0
    refused: int = 0
    most_open: int = 0


@dataclass(slots=True)
class _Session(Generic[Kept]):
    kept: Kept
    used: float


class Sessions(Generic[Kept]):
    """Sessions by trace id; `end` cleans up after one."""

    def __init__(
        self,
        max_open: int,
        end: Callable[[Kept], object] = lambda _: None,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_open, self._end, self._idle_s, self._clock = max_open, end, idle_s, clock
        self._open: dict[str, _Session[Kept]] = {}
        self._counts = Counts()
        # One change at a time: an end waits for the start before it, and a repeated start finds its session open.
        self._lock = Lock()

    def open(self, trace_id: str, make: Callable[[], Kept]) -> None:
        """Open what `make` returns; nothing happens if the rollout has a session.

        Raises:
            Full: `max_open` are open.
        """
        with self._lock:
            self._close_idle()
            if trace_id in self._open:
                return
            if len(self._open) >= self._max_open:
                self._counts.refused += 1
                raise Full
            self._open[trace_id] = _Session(make(), self._clock())
            self._counts.opened += 1
            self._counts.most_open = max(self._counts.most_open, len(self._open))

    def close(self, trace_id: str) -> bool:
        """Close a rollout's session; returns False if it has none, as when its end arrives twice."""
        with self._lock:
            return self._close(trace_id)

    def close_idle(self) -> None:
        with self._lock:
            self._close_idle()

    def close_all(self) -> None:
        with self._lock:
            for trace_id in list(self._open):
                self._close(trace_id)

    def get(self, trace_id: str) -> Kept:
        """What is kept for a rollout, which counts as used.

        Raises:
            Gone: there is nothing.
        """
        session = self._open.get(trace_id)  # without the lock: a call need not wait for another rollout's start
        if session is None:
            raise Gone("no session is open for this rollout")
        session.used = self._clock()
        return session.kept

    def counts(self) -> dict[str, int]:
        """Counts, and how many are `open` now."""
        return asdict(self._counts) | {"open": len(self._open)}

    def _close_idle(self) -> None:
        last = self._clock() - self._idle_s
        for trace_id in [trace_id for trace_id, session in self._open.items() if session.used <= last]:
            self._counts.idle += self._close(trace_id)

    def _close(self, trace_id: str) -> bool:
        session = self._open.pop(trace_id, None)
        if session is None:
            return False
        self._end(session.kept)
        self._counts.closed += 1
        return True
