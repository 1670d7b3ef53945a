"""Throttle of rollouts: while too many rollouts fail for reasons outside the model, it starts only probes.

A probe is a single rollout that finds out whether rollouts succeed again. A broken endpoint therefore delays the job,
but does not cause it to discard most rollouts.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from agent_rft.actors.runtime.timing import REAL_TIMING, Timing
from agent_rft.errors import EngineFailed
from agent_rft.events import RolloutsResumed, RolloutsThrottled
from agent_rft.loop_protocols import Emit
from agent_rft.types import DiscardedRollout, Rollout

MAX_OUTCOMES = 64
MIN_OUTCOMES = 16
"""Minimum number of outcomes for an estimate of the failure rate."""
MIN_PROBE_WAIT_S, MAX_PROBE_WAIT_S = 2.0, 60.0


class RolloutThrottle:
    """Throttle of one job's rollouts.

    If the failure rate of the latest rollouts exceeds `max_failure_rate`, only probes may start until a probe succeeds.
    Failures of engines are not counted, because failed engines are replaced.
    """

    def __init__(self, max_failure_rate: float, emit: Emit, timing: Timing = REAL_TIMING) -> None:
        self._max_failure_rate = max_failure_rate
        self._emit = emit
        self._endpoint = ""
        self._timing = timing
        self._latest: deque[DiscardedRollout | None] = deque(maxlen=MAX_OUTCOMES)
        self._open_event = asyncio.Event()
        self._open_event.set()
        self._probe_s = MIN_PROBE_WAIT_S
        self._probe_at = 0.0

    @property
    def is_throttled(self) -> bool:
        return not self._open_event.is_set()

    async def wait_for_start(self) -> bool:
        """Wait until a rollout may start; return whether the rollout is a probe.

        If a probe succeeds, the throttling ends.
        """
        while self.is_throttled:
            wait_s = self._probe_at - self._timing.clock()
            if wait_s <= 0:
                self._probe_s = min(2 * self._probe_s, MAX_PROBE_WAIT_S)
                self._probe_at = self._timing.clock() + self._probe_s
                return True
            await self._wait_until_open(wait_s)
        return False

    def observe(self, outcome: Rollout | DiscardedRollout, is_probe: bool) -> None:
        """Record the outcome of a rollout; `is_probe` is what `wait_for_start` returned for this rollout."""
        if isinstance(outcome, DiscardedRollout) and outcome.reason == EngineFailed.reason:
            return
        failed = outcome if isinstance(outcome, DiscardedRollout) else None
        if self.is_throttled:
            if is_probe and failed is None:
                self._latest.clear()
                self._open_event.set()
                self._emit(RolloutsResumed(endpoint=self._endpoint))
            return
        self._latest.append(failed)
        failures = [failure for failure in self._latest if failure is not None]
        if len(self._latest) >= MIN_OUTCOMES and len(failures) > self._max_failure_rate * len(self._latest):
            self._throttle(failures)

    def _throttle(self, failures: list[DiscardedRollout]) -> None:
        self._open_event.clear()
        self._probe_s = MIN_PROBE_WAIT_S
        self._probe_at = self._timing.clock() + self._probe_s
        (endpoint, count), *_ = Counter(f.endpoint or f.reason for f in failures).most_common(1)
        last = next(f.message for f in reversed(failures) if (f.endpoint or f.reason) == endpoint)
        self._endpoint = endpoint
        self._emit(
            RolloutsThrottled(
                endpoint=endpoint,
                num_by_endpoint=count,
                num_failed=len(failures),
                num_rollouts=len(self._latest),
                cause=last,
            )
        )

    async def _wait_until_open(self, seconds: float) -> None:
        """Wait until rollouts may start again, for at most `seconds` on the clock of `timing`."""
        opened = asyncio.create_task(self._open_event.wait())
        sleeping = asyncio.ensure_future(self._timing.sleep(seconds))
        try:
            await asyncio.wait({opened, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()
            sleeping.cancel()
