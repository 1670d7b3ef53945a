"""Admission control of one endpoint: no slot is ever lost, and no rollout waits behind all calls of another one.

Each rollout has a queue of its own (a lane), and the lanes are served round-robin. A call is admitted when the
endpoint's concurrency limit, rate limit, breaker and Retry-After, and the process's sockets allow it.
"""

from __future__ import annotations

import asyncio
import math
import resource
from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from agent_rft.actors.endpoints.breaker import NO_CONNECTION, Breaker
from agent_rft.actors.endpoints.limits import AdaptiveLimit, RateLimit
from agent_rft.actors.runtime.timing import Timing

MAX_ON_WIRE = 8_192
"""Concurrent requests of one process: what one core can serve, and a third of the ports of one address."""
OTHER_FILES = 256
"""Open files that are not endpoint sockets."""
INSTANT_S = 1e-6
"""Shorter waits are rounding errors."""
LONGEST_HOLD_S = 30.0
"""The longest that one response's Retry-After delays the endpoint's other calls; then one of them may try."""


class RequestEnd(Enum):
    """How a request ended, as far as limit and breaker are concerned."""

    ANSWERED = "answered"
    BUSY = "busy"
    """The endpoint is up and wants fewer requests."""
    OVERLOADED = "overloaded"
    """The endpoint wants fewer requests, or is down behind a proxy."""
    FAILED = "failed"
    NO_CONNECTION = "no connection"
    LATE = "late"
    GIVEN_UP = "given up"
    """Cancelled by us: says nothing about the endpoint."""


PUSHED_BACK = frozenset({RequestEnd.BUSY, RequestEnd.OVERLOADED, RequestEnd.LATE})
ALIVE = frozenset({RequestEnd.ANSWERED, RequestEnd.BUSY})


class Permit(NamedTuple):
    """The right to send one request; returned by `Gate.leave`."""

    sent: float
    probe: bool
    queued_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Waiter:
    permit: asyncio.Future[Permit]
    failures: int
    since: float
    call: object


class Sockets:
    """Limits the concurrent requests of all gates that share it; gates that wait for a socket are served in turn."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: OrderedDict[Gate, None] = OrderedDict()

    @classmethod
    def of_process(cls) -> Sockets:
        """As many as the process may open, up to MAX_ON_WIRE; raises the soft limit of open files for that."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MAX_ON_WIRE + OTHER_FILES
        if soft != resource.RLIM_INFINITY and soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return cls(MAX_ON_WIRE if soft == resource.RLIM_INFINITY else max(1, min(MAX_ON_WIRE, soft - OTHER_FILES)))

    def take(self, gate: Gate) -> bool:
        if self._free:
            self._free -= 1
            return True
        self._waiting[gate] = None
        return False

    def give_back(self) -> None:
        self._free += 1
        while self._free and self._waiting:
            self._waiting.popitem(last=False)[0].let_in()


class Gate:
    """Admits requests to one endpoint."""

    def __init__(
        self, limit: AdaptiveLimit, rate: RateLimit | None, breaker: Breaker, sockets: Sockets, timing: Timing
    ):
        self.limit = limit
        self.breaker = breaker
        self.in_flight = 0
        self.queued = 0
        self.delayed = 0
        """Calls that have waited because the breaker was open; a call counts once an outage."""
        self._delayed: set[object] = set()
        self._rate = rate
        self._sockets = sockets
        self._timing = timing
        self._held_until = -math.inf
        self._lanes: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_at = math.inf

    async def enter(self, lane: str, failures: int = 0, call: object = None) -> Permit:
        """Wait for a permit. While the breaker is open, calls with the fewest `failures` are the first to probe.

        `call` is the same in all attempts of a call; it is kept until an outage ends.
        """
        now = self._timing.clock()
        if not self._lanes and self._wait_s(now) == 0 and self._sockets.take(self):
            return self._permit(now, now)
        permit: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(permit, failures, now, permit if call is None else call)
        self._lanes.setdefault(lane, deque()).append(waiter)
        self.queued += 1
        if self.breaker.is_open:
            self._delay(waiter)
        self.let_in()
        try:
            return await waiter.permit
        except asyncio.CancelledError:
            if waiter.permit.done() and not waiter.permit.cancelled():  # admitted and cancelled at the same moment
                self.leave(waiter.permit.result(), RequestEnd.GIVEN_UP)
            else:
                self._remove(lane, waiter)
            raise

    def try_enter(self) -> Permit | None:
        """A permit if one is free and no call waits, else None."""
        now = self._timing.clock()
        if self._lanes or self.breaker.is_open or self._wait_s(now) != 0 or not self._sockets.take(self):
            return None
        return self._permit(now, now)

    def leave(self, permit: Permit, end: RequestEnd, why: str = "") -> None:
        """Return the permit of a request that ended in this way, and admit waiting calls."""
        now = self._timing.clock()
        if end is RequestEnd.ANSWERED:
            self.limit.answered(permit.sent, now, self.in_flight)
        elif end in PUSHED_BACK:
            self.limit.pushed_back(permit.sent, now, self.in_flight)
        self.breaker.ended(permit.probe)
        if end in ALIVE:
            if self.breaker.succeeded():
                self.limit.start_over()
                self._delayed.clear()
        elif end is not RequestEnd.GIVEN_UP:
            was_open = self.breaker.is_open
            self.breaker.failed(now, NO_CONNECTION if end is RequestEnd.NO_CONNECTION else 1, why)
            if self.breaker.is_open and not was_open:
                for waiters in self._lanes.values():
                    for waiter in waiters:
                        self._delay(waiter)
        self.in_flight -= 1
        self._sockets.give_back()
        if self._lanes:
            self.let_in()

    def hold_back(self, seconds: float) -> None:
        """Admit no call for this long, because the endpoint asked for it."""
        self._held_until = max(self._held_until, self._timing.clock() + min(seconds, LONGEST_HOLD_S))

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def let_in(self) -> None:
        """Hand all available permits to waiting calls."""
        now = self._timing.clock()
        while self._lanes:
            wait_s = self._wait_s(now)
            if wait_s == math.inf:  # `leave` calls this again
                return
            if wait_s > 0:
                self._set_alarm(now, wait_s)
                return
            if not self._sockets.take(self):
                return
            waiter = self._next()
            if waiter.permit.cancelled():  # its task has not run yet to leave the queue
                self._sockets.give_back()
            else:
                waiter.permit.set_result(self._permit(now, waiter.since))

    def _delay(self, waiter: _Waiter) -> None:
        if waiter.call not in self._delayed:
            self._delayed.add(waiter.call)
            self.delayed += 1

    def _wait_s(self, now: float) -> float:
        """How long no call may be admitted, in seconds; infinite if that is until a request ends."""
        wait_s = self._held_until - now
        # Probes of an endpoint whose calls take hours add up, so the maximum holds for them, too.
        if self.in_flight >= (self.limit.maximum if self.breaker.is_open else self.limit.now):
            return math.inf
        if self.breaker.is_open:
            wait_s = max(wait_s, self.breaker.wait_s(now))
        if self._rate is not None:
            wait_s = max(wait_s, self._rate.wait_s(now))
        return wait_s if wait_s > INSTANT_S else 0.0

    def _permit(self, now: float, since: float) -> Permit:
        self.in_flight += 1
        if self._rate is not None:
            self._rate.take(now)
        return Permit(now, self.breaker.sent(now), now - since)

    def _next(self) -> _Waiter:
        """The first call of the next lane; for a probe, the waiting call that has failed least often."""
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
        self._alarm = asyncio.create_task(self._wake(wait_s))

    async def _wake(self, wait_s: float) -> None:
        await self._timing.sleep(wait_s)
        self._alarm = None
        self.let_in()
