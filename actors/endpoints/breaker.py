"""A circuit breaker: an endpoint that only fails gets no requests but an occasional probe.

It opens after MAX_FAILURES failures in a row, which do not happen by chance: at an endpoint that fails half of its
calls at random, once in two million calls. Any answer that shows that the endpoint is up closes it:

             MAX_FAILURES in a row         the wait is over: send a probe
    closed ------------------------> open --------------------------------> half_open
      ^                              |  ^                                    |  |
      |                              |  +--- the probe failed: wait longer --+  |
      |                              |                                          |
      +------------------------------+----------------- an answer --------------+

In `open`, the answer is that of a request sent before the breaker opened.
"""

from __future__ import annotations

from typing import Literal

from agent_rft.actors.runtime.timing import Timing

MAX_FAILURES = 20
NO_CONNECTION = 4
"""The weight of an attempt that got no connection: nothing listens there, so five of them are enough."""
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 30.0

State = Literal["closed", "open", "half_open"]


class Breaker:
    """The breaker of one endpoint.

    While it is open, the waits before the next probe double from FIRST_WAIT_S to LONGEST_WAIT_S. The wait starts when
    a probe is sent, so a probe that gets no answer does not delay the next one.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._failures = 0
        self._probes_out = 0
        self._wait_s = FIRST_WAIT_S
        self._probe_at = 0.0
        self.is_open = False
        self.times_opened = 0
        self.why = ""
        """The latest failure."""

    @property
    def state(self) -> State:
        if not self.is_open:
            return "closed"
        return "half_open" if self._probes_out else "open"

    def wait_s(self, now: float) -> float:
        """How long, in seconds, nothing may be sent."""
        return max(0.0, self._probe_at - now) if self.is_open else 0.0

    def sent(self, now: float) -> bool:
        """Record that a request is sent; returns whether it is a probe."""
        if not self.is_open:
            return False
        self._probes_out += 1
        self._plan_probe(now)
        return True

    def ended(self, probe: bool) -> None:
        """Record that a request has ended, in whatever way."""
        self._probes_out -= probe

    def succeeded(self) -> bool:
        """Record an answer; returns whether it closed an open breaker."""
        self._failures = 0
        closed, self.is_open = self.is_open, False
        return closed

    def failed(self, now: float, weight: int, why: str) -> None:
        self.why = why
        self._failures += weight
        if not self.is_open and self._failures >= MAX_FAILURES:
            self.is_open = True
            self.times_opened += 1
            self._wait_s = FIRST_WAIT_S
            self._plan_probe(now)

    def _plan_probe(self, now: float) -> None:
        self._probe_at = now + self._wait_s * (1 - self._timing.jitter() / 4)
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
