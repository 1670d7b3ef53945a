"""What a server of an example keeps for each rollout, opened at its session's start and closed at its end.

At most `max_open` are open. One that nobody has used for `idle_s` is closed, so a lost end costs a place for a bounded
time. Several threads may call, and none waits while another rollout's session is opened or cleaned up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from fastapi import HTTPException

IDLE_S: Final = 3_600.0
"""Far longer than a rollout of these jobs is without a call: at least twice their `limits.rollout_timeout_s`."""
Kept = TypeVar("Kept")


class Full(Exception):
    """All places are taken."""


class Gone(LookupError):
    """The rollout has no session: it has ended, or was never opened."""


@dataclass(slots=True)
class Counts:
    """Since the start; `idle` are those of `closed` that were closed because nobody used them.

    `most_open` has those that were about to open too, since these take places.
    """

    opened: int = 0
    closed: int = 0
    idle: int = 0
    refused: int = 0
    most_open: int = 0


class Locks:
    """A lock for each key, which lasts as long as somebody holds or awaits it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, ...], Lock] = WeakValueDictionary()
        self._lock = Lock()

    def of(self, *key: str) -> Lock:
        with self._lock:
            return self._locks.setdefault(key, Lock())


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
        self._num_starting = 0
        self._counts = Counts()
        # This lock guards all that is above; nothing slow runs under it.
        self._lock = Lock()
        # A lock for each rollout: an end waits for the start before it, and a repeated start finds its session open.
        self._rollouts = Locks()

    def open(self, trace_id: str, make: Callable[[], Kept]) -> None:
        """Open what `make` returns; nothing happens if the rollout has a session.

        Raises:
            Full: `max_open` are open.
        """
        self.close_idle()
        with self._rollouts.of(trace_id):
            with self._lock:
                if trace_id in self._open:
                    return
                if len(self._open) + self._num_starting >= self._max_open:
                    self._counts.refused += 1
                    raise Full
                self._num_starting += 1
                self._counts.most_open = max(self._counts.most_open, len(self._open) + self._num_starting)
            made: list[Kept] = []
            try:
                made.append(make())
            finally:
                with self._lock:
                    self._num_starting -= 1
                    if made:
                        self._open[trace_id] = _Session(made[0], self._clock())
                        self._counts.opened += 1

    def close(self, trace_id: str) -> bool:
        """Close a rollout's session; returns False if it has none, as when its end arrives twice."""
        with self._rollouts.of(trace_id):
            with self._lock:
                session = self._open.pop(trace_id, None)
                self._counts.closed += session is not None
            if session is not None:
                self._end(session.kept)
            return session is not None

    def close_idle(self) -> None:
        with self._lock:
            last = self._clock() - self._idle_s
            lost = [trace_id for trace_id, session in self._open.items() if session.used <= last]
            idle = [self._open.pop(trace_id) for trace_id in lost]
            self._counts.idle += len(idle)
            self._counts.closed += len(idle)
        for session in idle:
            self._end(session.kept)

    def close_all(self) -> None:
        """For the end of a server, after its last start."""
        for trace_id in list(self._open):
            self.close(trace_id)

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


def trace_of(body: Mapping[str, Any]) -> str:
    """The rollout that a request is about.

    Raises:
        HTTPException: there is none.
    """
    if not isinstance(trace_id := body.get("trace_id"), str):
        raise HTTPException(422, "the body needs a trace_id")
    return trace_id
