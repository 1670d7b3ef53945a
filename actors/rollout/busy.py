"""The share of the time for which engines had requests to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any


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
