"""Live progress of a run's rollouts.

It consists of counts since the last `clear`, the newest rollout, and the share of time in which engines are busy.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agent_rft.types import GroupRequest, Purpose, Rollout, Task

GroupId = tuple[Purpose, int]


class RolloutProgress:
    """Live progress of the rollouts of a `GroupRunner`, which keeps it up to date. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._attempts: dict[object, tuple[str, float]] = {}  # ordered by start
        self._ended_by_group: dict[GroupId, int] = {}
        self.num_ended_by_purpose: Counter[Purpose] = Counter()
        self.calls: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.newest_rollout: Rollout | None = None

    @contextmanager
    def track_group(self, request: GroupRequest) -> Iterator[None]:
        """Context manager that counts a group as open while its rollouts are sampled."""
        self._ended_by_group[request.purpose, request.index] = 0
        try:
            yield
        finally:
            del self._ended_by_group[request.purpose, request.index]

    @contextmanager
    def track_attempt(self, task: Task) -> Iterator[None]:
        """Context manager that counts an attempt at a rollout as in flight."""
        key = object()
        self._attempts[key] = task.row_id, self._clock()
        try:
            yield
        finally:
            del self._attempts[key]

    def record_end(self, request: GroupRequest, rollout: Rollout | None) -> None:
        """Count a rollout of an open group as ended; `rollout` is None if all its attempts failed."""
        key = request.purpose, request.index
        self._ended_by_group[key] = min(
            request.size, self._ended_by_group[key] + 1
        )  # more than `size` may end if the group is sampled twice
        self.num_ended_by_purpose[request.purpose] += not request.samples  # a repeated rollout has ended before
        if rollout is not None:
            self.newest_rollout = rollout
            self.calls.update(call.name for call in rollout.calls)
            pairs = zip(rollout.calls, rollout.results, strict=True)
            self.errors.update(call.name for call, result in pairs if result.error)

    def clear(self) -> None:
        """Reset the counts and the newest rollout, at the end of a step or an evaluation."""
        for counts in (self.num_ended_by_purpose, self.calls, self.errors):
            counts.clear()
        self.newest_rollout = None

    def num_ended(self, purpose: Purpose, index: int) -> int:
        """Return how many rollouts of a group have ended; 0 if the group is not open."""
        return self._ended_by_group.get((purpose, index), 0)

    @property
    def purpose(self) -> Purpose:
        """Purpose of the open groups. An evaluation takes precedence over training."""
        return next((purpose for purpose, _ in self._ended_by_group if purpose != "train"), "train")

    @property
    def in_flight(self) -> int:
        return len(self._attempts)

    @property
    def slowest_attempt(self) -> tuple[str, float] | None:
        """Row id and duration in seconds of the attempt that has run longest; None if no attempt is in flight."""
        row, since = next(iter(self._attempts.values()), ("", 0.0))
        return (row, self._clock() - since) if self._attempts else None


# -- busy --------------------------------------------------------------------------------------------------------------


class BusyShare:
    """Share of time in which the engines were busy, averaged over the engines. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._previous: dict[Any, tuple[float, float]] = {}

    def measure(self, busy_s: Mapping[Any, float]) -> float | None:
        """Return the busy share since the previous call.

        Args:
            busy_s: Seconds for which each engine has been busy since its start, keyed by the engine's actor.

        Returns:
            A share from 0 to 1; None in the first call, or if the previous call did not include any of these engines.
        """
        now = self._clock()
        before, self._previous = self._previous, {engine: (now, busy) for engine, busy in busy_s.items()}
        measured = [engine for engine in busy_s if engine in before]
        total_s = sum(now - before[engine][0] for engine in measured)
        return sum(busy_s[engine] - before[engine][1] for engine in measured) / total_s if total_s else None
