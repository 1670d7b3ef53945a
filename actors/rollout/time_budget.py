"""Time limits of one rollout: one limit for model and tool time, another for waiting.

The waiting time of a stage is known only at its end. While a stage runs, only the sum of both limits applies.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agent_rft.errors import RolloutTimeout, RolloutWaitTimeout
from agent_rft.spec.job import WAIT_FACTOR, RolloutLimits


class TimeBudget:
    """Time limits of one rollout, and the time that the rollout has used; `clock` returns seconds.

    A rollout that exceeds its limit of model and tool time is discarded or graded; see `RolloutLimits.on_timeout`. If
    the rollout must be graded, `is_over` becomes True.
    """

    def __init__(self, limits: RolloutLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._busy_s = 0.0
        self._sampling_s = 0.0
        self.is_over = False
        self._waited_s: defaultdict[str, float] = defaultdict(float)

    def count_sampling(self, seconds: float) -> None:
        """Count seconds of the current stage as model time."""
        self._sampling_s += seconds
        self._busy_s += seconds

    def count_tools(self, seconds: float) -> None:
        """Count seconds of the current stage as tool time."""
        self._busy_s += seconds

    @asynccontextmanager
    async def stage(self, waits_for: str) -> AsyncIterator[None]:
        """Context manager for a stage of the rollout.

        The duration of the stage, without its model and tool time, counts as waiting for `waits_for`, the name of an
        engine or endpoint.

        Raises:
            RolloutTimeout: The rollout's model and tool time exceeds its limit, and the rollout must not be graded.
            RolloutWaitTimeout: The rollout's waiting time exceeds its limit.
        """
        started, busy_before, sampling_before = self._clock(), self._busy_s, self._sampling_s
        limit_s = self._limits.rollout_timeout_s
        left_s = max(0.0, limit_s - busy_before) + self._limits.wait_timeout_s - self._total_wait_s
        is_late = False
        try:
            async with asyncio.timeout(max(0.0, left_s)) as deadline:
                yield
        except TimeoutError:
            if not deadline.expired():
                raise
            is_late = True
        stage_busy_s = self._busy_s - busy_before
        self._waited_s[waits_for] += max(0.0, self._clock() - started - stage_busy_s)
        if self._busy_s > limit_s and not self.is_over:
            self.is_over = self._may_grade(was_sampling=self._sampling_s > sampling_before)
            if not self.is_over:
                what = f"used {self._busy_s:.1f} s of model and tool time"
                raise RolloutTimeout(f"{what}; limits.rollout_timeout_s is {limit_s:g} s")
        if is_late or self._total_wait_s > self._limits.wait_timeout_s:
            raise self._wait_error()

    def _may_grade(self, *, was_sampling: bool) -> bool:
        """Return whether to grade a rollout that reached its time limit, either while sampling or in a tool call."""
        return self._limits.on_timeout == "grade" and was_sampling and self._sampling_s > self._busy_s / 2

    @property
    def _total_wait_s(self) -> float:
        return sum(self._waited_s.values())

    def _wait_error(self) -> RolloutWaitTimeout:
        what, longest_s = max(self._waited_s.items(), key=lambda waited: waited[1])
        limit = f"the limit is {self._limits.wait_timeout_s:g} s ({WAIT_FACTOR} x limits.rollout_timeout_s)"
        waited = f"waited {self._total_wait_s:.0f} s in total, including {longest_s:.0f} s for {what}"
        return RolloutWaitTimeout(f"{waited}; {limit}", endpoint=what)
