"""Sessions of an example's server: an object per rollout, opened when the session starts and closed when it ends.

At most `max_open` sessions are open. A session that is not used for `idle_s` is closed, so that a lost end request does
not block a slot forever. The methods are thread-safe, and no call waits for the session of another rollout.
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
"""Default idle time: at least twice the jobs' `limits.rollout_timeout_s`, so that only lost sessions are closed."""
Kept = TypeVar("Kept")


class Full(Exception):
    """The maximum number of sessions is open."""


class Gone(LookupError):
    """The rollout has no session: it has ended, or was never opened."""


@dataclass(slots=True)
class Counts:
    """Numbers of sessions since the start. `idle` counts closed sessions that were unused for too long.

    `most_open` is the maximum number of open sessions, including sessions that are being opened.
    """

    opened: int = 0
    closed: int = 0
    idle: int = 0
    refused: int = 0
    most_open: int = 0


class Locks:
    """Locks by key. A lock exists as long as a thread holds it or waits for it."""

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
    """Sessions by trace id. The callback `end` cleans up after a session."""

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
        # This lock guards the attributes above. No slow operation holds it.
        self._lock = Lock()
        # A lock per rollout: an end request waits for the start before it, and a repeated start finds an open session.
        self._rollouts = Locks()

    def open(self, trace_id: str, make: Callable[[], Kept]) -> None:
        """Open a session with the object that `make` returns. If the rollout has a session, do nothing.

        Raises:
            Full: `max_open` sessions are open.
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
        """Close a rollout's session; return False if no session is open, for example after a repeated end request."""
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
        """Close all sessions at the end of the server, when no more sessions are opened."""
        for trace_id in list(self._open):
            self.close(trace_id)

    def get(self, trace_id: str) -> Kept:
        """Return the object of a rollout's session, and record that the session is used.

        Raises:
            Gone: The rollout has no session.
        """
        session = self._open.get(trace_id)  # without the lock: a call need not wait for another rollout's start
        if session is None:
            raise Gone("no session is open for this rollout")
        session.used = self._clock()
        return session.kept

    def counts(self) -> dict[str, int]:
        """Return the counts, and the number of sessions that are `open` now."""
        return asdict(self._counts) | {"open": len(self._open)}


def trace_of(body: Mapping[str, Any]) -> str:
    """Return the trace id in the body of a request.

    Raises:
        HTTPException: The body has no trace id.
    """
    if not isinstance(trace_id := body.get("trace_id"), str):
        raise HTTPException(422, "the body needs a trace_id")
    return trace_id
