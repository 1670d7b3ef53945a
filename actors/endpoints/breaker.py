"""Circuit breaker: while all requests to an endpoint fail, no requests are sent except occasional probes.

The breaker opens after MAX_FAILURES failures in a row. An endpoint that randomly fails half of its calls reaches
this number about once in two million calls. Any answer that shows that the endpoint is up closes the breaker:

             MAX_FAILURES in a row         the wait is over: send a probe
    closed ------------------------> open --------------------------------> half_open
      ^                              |  ^                                    |  |
      |                              |  +--- the probe failed: wait longer --+  |
      |                              |                                          |
      +------------------------------+----------------- an answer --------------+

The arrow from `open` to `closed` stands for an answer to a request that was sent before the breaker opened.
"""

from __future__ import annotations

from typing import Literal

from agent_rft.actors.runtime.timing import Timing

MAX_FAILURES = 20
NO_CONNECTION_WEIGHT = 4
"""Number of failures that one failed connection counts as."""
FIRST_WAIT_S = 1.0
MAX_PROBE_WAIT_S = 30.0

State = Literal["closed", "open", "half_open"]


class Breaker:
    """The circuit breaker of one endpoint.

    While the breaker is open, the wait before the next probe doubles from FIRST_WAIT_S to MAX_PROBE_WAIT_S. Each wait
    starts when a probe is sent, so a probe that gets no answer does not delay the next probe.
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
        """Reason for the latest failure."""

    @property
    def state(self) -> State:
        if not self.is_open:
            return "closed"
        return "half_open" if self._probes_in_flight else "open"

    def wait_s(self, now: float) -> float:
        """Return the seconds until the breaker permits a request."""
        return max(0.0, self._probe_at - now) if self.is_open else 0.0

    def record_request(self, now: float) -> bool:
        """Record that a request is being sent; return whether it is a probe."""
        if not self.is_open:
            return False
        self._probes_in_flight += 1
        self._schedule_probe(now)
        return True

    def record_end(self, was_probe: bool) -> None:
        """Record that a request has ended, successfully or not."""
        self._probes_in_flight -= was_probe

    def record_answer(self) -> bool:
        """Record an answer, which closes an open breaker; return whether the breaker was open."""
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
