"""How many requests one endpoint gets at a time: as many as it keeps up with, and never more than it may get.

The limit grows while it is in use: by one with each good answer at first (slow start), after the first trouble by its
square root in a round trip. It shrinks by half of the share of a round trip's requests that were pushed back (as DCTCP
does, RFC 8257), so that single refusals cost little and refusals all over halve it, and where answers have become much
slower than they used to be (the idea of Gradient2 of Netflix's concurrency-limits).
"""

from __future__ import annotations

import math

START = 16
"""Enough not to be felt, little enough for a small server's first second."""
ROUND = 4
"""Answers that are looked at together, at least: one refusal of a lone call is no sign."""
LATENCY_SAMPLES = 50
"""Natural latencies are about log-normal, with a standard deviation of 1 in the logarithm (median 0.2 s, p99 2 s): the
mean logarithm of 50 is known to 0.14, so a doubling by chance is one in a million."""
SLOWER = 2.0
"""Times the usual latency: what counts as rising."""
SLACK_S = 0.05
"""Nobody waits for less: quick endpoints are not held to milliseconds, which may be our own."""
USUAL_SOON, USUAL_LATE = 0.2, 0.005
"""How far the usual latency follows the latest one: soon to what is less, and to what stays high even at a quarter of
the requests; hardly to what rises while we ask for more, since that may be our doing."""


class AdaptiveLimit:
    """Between 1 and `most`. Times are of one clock, in seconds.

    A request that was sent before the limit last shrank says nothing of the new one: so it shrinks at most once in a
    round trip.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(min(most, START))
        self._slow_start = True
        self._shrunk_at = -math.inf
        self._usual: float | None = None
        self._fell_from = 0.0
        self._outcomes, self._pushed_back, self._peak = 0, 0, 1
        self._sum, self._samples = 0.0, 0

    @property
    def now(self) -> int:
        return int(self._limit)

    def answered(self, sent: float, now: float, in_flight: int) -> None:
        """A request sent at `sent` was answered; `in_flight` counts it too."""
        if sent < self._shrunk_at:
            return
        # An endpoint that is not asked for more shows nothing, and a slow one is not asked for more.
        if 2 * in_flight >= self._limit and not self._fell_from:
            step = 1.0 if self._slow_start else 1.0 / math.sqrt(self._limit)
            self._limit = min(float(self._most), self._limit + step)
        self._sum += math.log(max(now - sent, 1e-6))
        self._samples += 1
        if self._samples >= LATENCY_SAMPLES:
            self._compare(now)
        self._outcome(now, in_flight, pushed_back=0)

    def pushed_back(self, sent: float, now: float, in_flight: int) -> None:
        """A request was told to come later, or got no answer in time."""
        if sent >= self._shrunk_at:
            self._outcome(now, in_flight, pushed_back=1)

    def start_over(self) -> None:
        """After an outage: nobody knows what it can bear now."""
        self._limit, self._slow_start, self._fell_from = 1.0, True, 0.0
        self._begin_round()
        self._begin_samples()

    def _outcome(self, now: float, in_flight: int, pushed_back: int) -> None:
        self._outcomes += 1
        self._pushed_back += pushed_back
        self._peak = max(self._peak, in_flight)
        if self._outcomes < max(self._peak, ROUND):
            return
        share = self._pushed_back / self._outcomes
        if share:
            # Where most are refused, what was really tried counts: a limit that nobody had reached means nothing.
            tried = min(self._limit, 2.0 * self._peak) if share > 0.5 else self._limit
            self._shrink(now, tried * (1 - share / 2))
        self._begin_round()

    def _compare(self, now: float) -> None:
        """The mean logarithm of the latest latencies with the usual one."""
        latest = self._sum / self._samples
        self._begin_samples()
        if self._usual is None:
            self._usual = latest
        risen = math.exp(latest) > SLOWER * math.exp(self._usual) + SLACK_S
        self._fell_from = max(self._fell_from, self._limit) if risen else 0.0
        if latest < self._usual or (risen and self._limit <= max(1.0, self._fell_from / 4)):
            self._usual += (latest - self._usual) * USUAL_SOON
        elif not risen:
            self._usual += (latest - self._usual) * USUAL_LATE
        if risen:
            self._shrink(now, self._limit / 2)

    def _shrink(self, now: float, limit: float) -> None:
        self._limit = max(1.0, limit)
        self._slow_start = False
        self._shrunk_at = now
        self._begin_round()
        self._begin_samples()

    def _begin_round(self) -> None:
        self._outcomes, self._pushed_back, self._peak = 0, 0, 1

    def _begin_samples(self) -> None:
        self._sum, self._samples = 0.0, 0


class Pace:
    """At most `rate_per_s` requests a second, evenly: a token bucket that holds a tenth of a second's (kept as the time
    at which it would be full: the generic cell rate algorithm).
    """

    BURST_S = 0.1

    def __init__(self, rate_per_s: float) -> None:
        self._interval_s = 1 / rate_per_s
        self._full_at = -math.inf

    def wait_s(self, now: float) -> float:
        return max(0.0, self._full_at - now - self.BURST_S) if self._full_at > now else 0.0

    def take(self, now: float) -> None:
        self._full_at = max(self._full_at, now) + self._interval_s
