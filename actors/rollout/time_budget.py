"""The time of one rollout: model and tool time have a limit, and waiting has another one.

Model and tool time is known only when a turn's completion or results arrive. So a stage may take what is left of both
limits, and is then accounted. Each stage has a closer deadline of its own: a tool's and a grader's `timeout_s`, and the
watchdog for an engine.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agent_rft.errors import RolloutTimeout, RolloutWaited
from agent_rft.spec.job import WAIT_FACTOR, RolloutLimits


class TimeBudget:
    """What a rollout has used; `clock` returns seconds."""

    def __init__(self, limits: RolloutLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._busy_s = 0.0
        self._waited_s: defaultdict[str, float] = defaultdict(float)

    def busy(self, seconds: float) -> None:
        """Model or tool time within the current stage."""
        self._busy_s += seconds

    @asynccontextmanager
    async def stage(self, waits_for: str) -> AsyncIterator[None]:
        """A stage of the rollout: its time that is not `busy` is waiting for `waits_for`, such as an engine.

        Raises:
            RolloutTimeout: model and tool time is above its limit.
            RolloutWaited: waiting is above its limit.
        """
        started, busy_before = self._clock(), self._busy_s
        left_s = self._limits.rollout_timeout_s + self._limits.wait_timeout_s - busy_before - self._total_wait_s
        late = False
        try:
            async with asyncio.timeout(max(0.0, left_s)) as deadline:
                yield
        except TimeoutError:
            if not deadline.expired():
                raise
            late = True
        stage_busy_s = self._busy_s - busy_before
        self._waited_s[waits_for] += max(0.0, self._clock() - started - stage_busy_s)
        if (limit_s := self._limits.rollout_timeout_s) < self._busy_s:
            what = f"took {self._busy_s:.1f} s of model and tool time"
            raise RolloutTimeout(f"{what}; limits.rollout_timeout_s is {limit_s:g} s")
        if late or self._total_wait_s > self._limits.wait_timeout_s:
            raise self._too_long()

    @property
    def _total_wait_s(self) -> float:
        return sum(self._waited_s.values())

    def _too_long(self) -> RolloutWaited:
        what, longest_s = max(self._waited_s.items(), key=lambda waited: waited[1])
        limit = f"the limit is {self._limits.wait_timeout_s:g} s ({WAIT_FACTOR} x limits.rollout_timeout_s)"
        waited = f"waited {self._total_wait_s:.0f} s, {longest_s:.0f} s of them for {what}"
        return RolloutWaited(f"{waited}; {limit}", endpoint=what)
