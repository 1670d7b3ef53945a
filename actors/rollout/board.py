"""Live figures of a run's rollouts: counts since the last `clear`, the newest trace, and the engines' busy share."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agent_rft.types import GroupRequest, Purpose, Rollout, Task

Key = tuple[Purpose, int]


class Board:
    """Kept by `Groups`; a read costs no more than the rollouts in flight. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[object, tuple[str, float]] = {}  # in the order in which they began
        self._open: dict[Key, int] = {}
        self.ended_since: Counter[Purpose] = Counter()
        self.calls: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.newest: Rollout | None = None

    @contextmanager
    def group(self, request: GroupRequest) -> Iterator[None]:
        """A group is open within."""
        self._open[request.purpose, request.index] = 0
        try:
            yield
        finally:
            del self._open[request.purpose, request.index]

    @contextmanager
    def attempt(self, task: Task) -> Iterator[None]:
        """An attempt at a rollout is in flight within."""
        key = object()
        self._running[key] = task.row_id, self._clock()
        try:
            yield
        finally:
            del self._running[key]

    def ended(self, request: GroupRequest, rollout: Rollout | None) -> None:
        """A rollout of an open group was graded, or given up."""
        key = request.purpose, request.index
        self._open[key] = min(request.size, self._open[key] + 1)  # a group may be sampled again
        self.ended_since[request.purpose] += 1
        if rollout is not None:
            self.newest = rollout
            self.calls.update(call.name for call in rollout.calls)
            pairs = zip(rollout.calls, rollout.results, strict=True)
            self.errors.update(call.name for call, result in pairs if result.error)

    def clear(self) -> None:
        """Forget the counts: a step or an evaluation is done."""
        for counts in (self.ended_since, self.calls, self.errors):
            counts.clear()
        self.newest = None

    def ended_of(self, purpose: Purpose, index: int) -> int:
        """Rollouts of a group that have ended; 0 if the group is not open."""
        return self._open.get((purpose, index), 0)

    @property
    def purpose(self) -> Purpose:
        """What is waited for: an evaluation, else training."""
        return next((purpose for purpose, _ in self._open if purpose != "train"), "train")

    @property
    def in_flight(self) -> int:
        return len(self._running)

    @property
    def slowest(self) -> tuple[str, float] | None:
        """Row id and seconds of the attempt that has been in flight longest."""
        row, since = next(iter(self._running.values()), ("", 0.0))
        return (row, self._clock() - since) if self._running else None


# -- busy --------------------------------------------------------------------------------------------------------------


class BusyShare:
    """Share of the time between two readings for which engines were busy, as a mean over engines.

    `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before: dict[Any, tuple[float, float]] = {}

    def of(self, busy_s: Mapping[Any, float]) -> float | None:
        """Return the share since the last call.

        Args:
            busy_s: Seconds for which each engine has been busy since its start, by its actor.

        Returns:
            None if no engine was there at the last call.
        """
        now = self._clock()
        before, self._before = self._before, {engine: (now, busy) for engine, busy in busy_s.items()}
        known = [engine for engine in busy_s if engine in before]
        total_s = sum(now - before[engine][0] for engine in known)
        return sum(busy_s[engine] - before[engine][1] for engine in known) / total_s if total_s else None
