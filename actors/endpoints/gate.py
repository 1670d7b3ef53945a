"""Admission control of one endpoint: limits the requests in flight and shares them fairly between rollouts.

Each rollout has a separate queue (a lane), and the lanes are served round-robin. A call is admitted when all limits
allow it: the endpoint's concurrency limit, rate limit, breaker and Retry-After, and the process's socket limit.
"""

from __future__ import annotations

import asyncio
import math
import resource
from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from agent_rft.actors.endpoints.adaptive_limit import AdaptiveLimit, RequestRateLimit
from agent_rft.actors.endpoints.breaker import NO_CONNECTION_WEIGHT, Breaker
from agent_rft.actors.runtime.timing import Timing

MAX_ON_WIRE = 8_192
"""Maximum number of concurrent requests of one process."""
OTHER_FILES = 256
"""Number of open files reserved for everything except endpoint sockets."""
INSTANT_S = 1e-6
"""Waits shorter than this are rounding errors and are ignored."""
MAX_PAUSE_S = 30.0
"""Maximum time for which one Retry-After delays the endpoint's other calls."""


class RequestOutcome(Enum):
    """Outcome of a request; the concurrency limit and the breaker treat each outcome differently."""

    ANSWERED = "answered"
    BUSY = "busy"
    """The endpoint is up and asks for fewer requests."""
    OVERLOADED = "overloaded"
    """The endpoint asks for fewer requests, or a proxy reports that the endpoint is down."""
    FAILED = "failed"
    NO_CONNECTION = "no connection"
    LATE = "late"
    GIVEN_UP = "given up"
    """We cancelled the request. This outcome counts neither for nor against the endpoint."""


THROTTLED_OUTCOMES = frozenset({RequestOutcome.BUSY, RequestOutcome.OVERLOADED, RequestOutcome.LATE})
ENDPOINT_UP_OUTCOMES = frozenset({RequestOutcome.ANSWERED, RequestOutcome.BUSY})


class Permit(NamedTuple):
    """Permission to send one request; the caller must release it with `Gate.leave`."""

    sent_at: float
    is_probe: bool
    queued_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Waiter:
    permit: asyncio.Future[Permit]
    failures: int
    since: float
    call: object


class SocketLimit:
    """Limit on the total number of concurrent requests of several gates. Waiting gates are served in FIFO order."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: OrderedDict[Gate, None] = OrderedDict()

    @classmethod
    def from_process_limits(cls) -> SocketLimit:
        """Return a limit based on the number of files that the process may open, but at most MAX_ON_WIRE.

        If necessary, first increases the process's soft limit on open files.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = MAX_ON_WIRE + OTHER_FILES
        if soft != resource.RLIM_INFINITY and soft < needed:
            soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return cls(MAX_ON_WIRE if soft == resource.RLIM_INFINITY else max(1, min(MAX_ON_WIRE, soft - OTHER_FILES)))

    def acquire(self, gate: Gate) -> bool:
        if self._free:
            self._free -= 1
            return True
        self._waiting[gate] = None
        return False

    def release(self) -> None:
        self._free += 1
        while self._free and self._waiting:
            self._waiting.popitem(last=False)[0].admit_waiting()


class Gate:
    """Admission control for the requests to one endpoint."""

    def __init__(
        self,
        limit: AdaptiveLimit,
        rate: RequestRateLimit | None,
        breaker: Breaker,
        sockets: SocketLimit,
        timing: Timing,
    ):
        self.limit = limit
        self.breaker = breaker
        self.in_flight = 0
        self.queued = 0
        self.delayed = 0
        """Number of calls that waited because the breaker was open; a call counts once per outage."""
        self._delayed: set[object] = set()
        self._rate = rate
        self._sockets = sockets
        self._timing = timing
        self._held_until = -math.inf
        self._lanes: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_at = math.inf

    async def enter(self, lane: str, failures: int = 0, call: object = None) -> Permit:
        """Wait for a permit to send a request. While the breaker is open, calls with the fewest `failures` go first.

        `lane` names the queue in which the call waits. All attempts of a call pass the same `call`, so that the call
        counts as delayed only once per outage.
        """
        now = self._timing.clock()
        if not self._lanes and self._wait_s(now) == 0 and self._sockets.acquire(self):
            return self._issue_permit(now, now)
        permit: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(permit, failures, now, permit if call is None else call)
        self._lanes.setdefault(lane, deque()).append(waiter)
        self.queued += 1
        if self.breaker.is_open:
            self._count_delayed(waiter)
        self.admit_waiting()
        try:
            return await waiter.permit
        except asyncio.CancelledError:
            if waiter.permit.done() and not waiter.permit.cancelled():  # admitted and cancelled at the same moment
                self.leave(waiter.permit.result(), RequestOutcome.GIVEN_UP)
            else:
                self._remove(lane, waiter)
            raise

    def try_enter(self) -> Permit | None:
        """Return a permit if one is available and no call is waiting, else None."""
        now = self._timing.clock()
        if self._lanes or self.breaker.is_open or self._wait_s(now) != 0 or not self._sockets.acquire(self):
            return None
        return self._issue_permit(now, now)

    def leave(self, permit: Permit, outcome: RequestOutcome, why: str = "") -> None:
        """Release the permit of a request that has ended with `outcome`, and admit waiting calls.

        `why` is the reason for a failure.
        """
        now = self._timing.clock()
        if outcome is RequestOutcome.ANSWERED:
            self.limit.record_answer(permit.sent_at, now, self.in_flight)
        elif outcome in THROTTLED_OUTCOMES:
            self.limit.record_throttled(permit.sent_at, now, self.in_flight)
        self.breaker.record_end(permit.is_probe)
        if outcome in ENDPOINT_UP_OUTCOMES:
            if self.breaker.record_answer():
                self.limit.reset()
                self._delayed.clear()
        elif outcome is not RequestOutcome.GIVEN_UP:
            was_open = self.breaker.is_open
            weight = NO_CONNECTION_WEIGHT if outcome is RequestOutcome.NO_CONNECTION else 1
            self.breaker.record_failure(now, weight, why)
            if self.breaker.is_open and not was_open:
                for waiters in self._lanes.values():
                    for waiter in waiters:
                        self._count_delayed(waiter)
        self.in_flight -= 1
        self._sockets.release()
        if self._lanes:
            self.admit_waiting()

    def pause(self, seconds: float) -> None:
        """Admit no calls for `seconds`, at most MAX_PAUSE_S, because the endpoint asked for a pause."""
        self._held_until = max(self._held_until, self._timing.clock() + min(seconds, MAX_PAUSE_S))

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def admit_waiting(self) -> None:
        """Give all available permits to waiting calls."""
        now = self._timing.clock()
        while self._lanes:
            wait_s = self._wait_s(now)
            if wait_s == math.inf:  # `leave` calls this again
                return
            if wait_s > 0:
                self._set_alarm(now, wait_s)
                return
            if not self._sockets.acquire(self):
                return
            waiter = self._pop_next()
            if waiter.permit.cancelled():  # its task has not removed it from the queue yet
                self._sockets.release()
            else:
                waiter.permit.set_result(self._issue_permit(now, waiter.since))

    def _count_delayed(self, waiter: _Waiter) -> None:
        if waiter.call not in self._delayed:
            self._delayed.add(waiter.call)
            self.delayed += 1

    def _wait_s(self, now: float) -> float:
        """Return the seconds until a call can be admitted; infinity if a request in flight must end first."""
        wait_s = self._held_until - now
        # While the breaker is open only the maximum applies: it bounds the probes of endpoints whose calls take hours.
        if self.in_flight >= (self.limit.maximum if self.breaker.is_open else self.limit.current):
            return math.inf
        if self.breaker.is_open:
            wait_s = max(wait_s, self.breaker.wait_s(now))
        if self._rate is not None:
            wait_s = max(wait_s, self._rate.wait_s(now))
        return wait_s if wait_s > INSTANT_S else 0.0

    def _issue_permit(self, now: float, since: float) -> Permit:
        self.in_flight += 1
        if self._rate is not None:
            self._rate.take_token(now)
        return Permit(now, self.breaker.record_request(now), now - since)

    def _pop_next(self) -> _Waiter:
        """Remove and return the first call of the next lane; if a probe is due, the call with the fewest failures."""
        if self.breaker.is_open:
            lane, waiter = min(
                ((lane, waiter) for lane, waiters in self._lanes.items() for waiter in waiters),
                key=lambda found: found[1].failures,
            )
            self._remove(lane, waiter)
            return waiter
        lane, waiters = self._lanes.popitem(last=False)
        waiter = waiters.popleft()
        if waiters:
            self._lanes[lane] = waiters
        self.queued -= 1
        return waiter

    def _remove(self, lane: str, waiter: _Waiter) -> None:
        waiters = self._lanes.get(lane, deque())
        if waiter in waiters:
            waiters.remove(waiter)
            self.queued -= 1
            if not waiters:
                del self._lanes[lane]

    def _set_alarm(self, now: float, wait_s: float) -> None:
        if self._alarm is not None:
            if self._alarm_at <= now + wait_s:
                return
            self._alarm.cancel()
        self._alarm_at = now + wait_s
        self._alarm = asyncio.create_task(self._admit_after(wait_s))

    async def _admit_after(self, wait_s: float) -> None:
        await self._timing.sleep(wait_s)
        self._alarm = None
        self.admit_waiting()
