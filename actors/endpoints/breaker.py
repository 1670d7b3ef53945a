"""A circuit breaker: an endpoint that only fails is left alone, but for one probe now and then.

It opens after a run of failures that chance does not bring: an endpoint that fails half of its calls at random has a
run of MAX_FAILURES once in two million calls. Any good answer closes it.
"""

from __future__ import annotations

from typing import Literal

from actors.runtime.timing import Timing

MAX_FAILURES = 20
NO_CONNECTION = 4
"""What an attempt counts that got no connection: nobody is there, so five of them are enough."""
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 30.0

State = Literal["closed", "open", "half_open"]


class Breaker:
    """Of one endpoint. While it is open a probe may be sent now and then, after waits that double from FIRST_WAIT_S to
    LONGEST_WAIT_S. A probe that gets no answer for so long does not hold up the next one.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._failures = 0
        self._probes_out = 0
        self._wait_s = FIRST_WAIT_S
        self._probe_at = 0.0
        self.is_open = False
        self.why = ""
        """What the latest failure was."""

    @property
    def state(self) -> State:
        if not self.is_open:
            return "closed"
        return "half_open" if self._probes_out else "open"

    def wait_s(self, now: float) -> float:
        """How long nothing may be sent."""
        return max(0.0, self._probe_at - now) if self.is_open else 0.0

    def sent(self, now: float) -> bool:
        """Something is sent; whether it is a probe."""
        if not self.is_open:
            return False
        self._probes_out += 1
        self._plan_probe(now)
        return True

    def ended(self, probe: bool) -> None:
        """What was sent has ended, one way or another."""
        self._probes_out -= probe

    def succeeded(self) -> bool:
        """It answered. Whether that closed an open breaker."""
        self._failures = 0
        closed, self.is_open = self.is_open, False
        return closed

    def failed(self, now: float, weight: int, why: str) -> None:
        self.why = why
        self._failures += weight
        if not self.is_open and self._failures >= MAX_FAILURES:
            self.is_open = True
            self._wait_s = FIRST_WAIT_S
            self._plan_probe(now)

    def _plan_probe(self, now: float) -> None:
        self._probe_at = now + self._wait_s * (1 - self._timing.jitter() / 4)
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
