"""Circuit breaker: stops requests to an endpoint that only fails, except for occasional probes.

It opens after MAX_FAILURES failures in a row. An endpoint that randomly fails half of its calls reaches this about once
in two million calls. Any answer that shows that the endpoint is up closes the breaker:

             MAX_FAILURES in a row         the wait is over: send a probe
    closed ------------------------> open --------------------------------> half_open
      ^                              |  ^                                    |  |
      |                              |  +--- the probe failed: wait longer --+  |
      |                              |                                          |
      +------------------------------+----------------- an answer --------------+

The arrow from `open` to `closed` is an answer to a request that was sent before the breaker opened.
"""

from __future__ import annotations

from typing import Literal

from agent_rft.actors.runtime.timing import Timing

MAX_FAILURES = 20
NO_CONNECTION_WEIGHT = 4
"""Weight of an attempt that could not connect: nothing is listening, so five such failures open the breaker."""
FIRST_WAIT_S = 1.0
MAX_PROBE_WAIT_S = 30.0

State = Literal["closed", "open", "half_open"]


class Breaker:
    """The circuit breaker of one endpoint.

    While it is open, the wait before the next probe doubles from FIRST_WAIT_S to LONGEST_WAIT_S. The wait starts when
    a probe is sent, so a probe without an answer does not delay the next one.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._failures = 0
        self._probes_in_flight = 0
        self._wait_s = FIRST_WAIT_S
        self._probe_at = 0.0
        self.is_open = False
        self.times_opened = 0
        self.last_failure = ""
        """Reason of the latest failure."""

    @property
    def state(self) -> State:
        if not self.is_open:
            return "closed"
        return "half_open" if self._probes_in_flight else "open"

    def wait_s(self, now: float) -> float:
        """Return the seconds until a request may be sent."""
        return max(0.0, self._probe_at - now) if self.is_open else 0.0

    def record_request(self, now: float) -> bool:
        """Record that a request is being sent; return whether it is a probe."""
        if not self.is_open:
            return False
        self._probes_in_flight += 1
        self._schedule_probe(now)
        return True

    def record_end(self, probe: bool) -> None:
        """Record that a request has ended, successfully or not."""
        self._probes_in_flight -= probe

    def record_answer(self) -> bool:
        """Record an answer; return whether it closed an open breaker."""
        self._failures = 0
        closed, self.is_open = self.is_open, False
        return closed

    def record_failure(self, now: float, weight: int, why: str) -> None:
        self.last_failure = why
        self._failures += weight
        if not self.is_open and self._failures >= MAX_FAILURES:
            self.is_open = True
            self.times_opened += 1
            self._wait_s = FIRST_WAIT_S
            self._schedule_probe(now)

    def _schedule_probe(self, now: float) -> None:
        self._probe_at = now + self._wait_s * (1 - self._timing.jitter() / 4)
        self._wait_s = min(2 * self._wait_s, MAX_PROBE_WAIT_S)
