"""The adaptive concurrency limit of one endpoint: as many requests as it keeps up with, up to the configured maximum.

The limit grows while it is used: by one with each good answer at first (slow start), after the first shrinking by its
square root per round trip. It shrinks by half of the fraction of a round trip's requests that were pushed back (as in
DCTCP, RFC 8257), so that a single 429 costs little and a round of them halves it. It also shrinks when latency has
risen well above normal (the idea of Gradient2 in Netflix's concurrency-limits).
"""

from __future__ import annotations

import math

START = 16
"""The initial limit: high enough not to slow a job down, low enough for a small server's first second."""
ROUND = 4
"""The least number of outcomes to judge together: one rejected call alone says little."""
LATENCY_SAMPLES = 50
"""Latencies are roughly log-normal, with a standard deviation of 1 in the logarithm (median 0.2 s, p99 2 s). The mean
logarithm of 50 samples has a standard error of 0.14, so a doubling by chance happens once in a million."""
SLOWER = 2.0
"""The ratio to the usual latency above which the latency counts as risen."""
SLACK_S = 0.05
"""Smaller rises are ignored: on fast endpoints they may come from our own process."""
USUAL_FAST, USUAL_SLOW = 0.2, 0.005
"""Smoothing factors of the usual latency. It follows fast if latency falls, or stays high even at a quarter of the
requests; it follows slowly if latency rises while we send more, since we may be the cause."""


class AdaptiveLimit:
    """A limit between 1 and `maximum`; all times are seconds on one clock.

    A request that was sent before the limit last shrank says nothing about the new one, so the limit shrinks at most
    once per round trip.
    """

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._limit = float(min(maximum, START))
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
        """Record that a request sent at `sent` was answered; `in_flight` includes it."""
        if sent < self._shrunk_at:
            return
        # Answers below the limit do not justify a higher one, and a slow endpoint gets no more requests.
        if 2 * in_flight >= self._limit and not self._fell_from:
            step = 1.0 if self._slow_start else 1.0 / math.sqrt(self._limit)
            self._limit = min(float(self.maximum), self._limit + step)
        self._sum += math.log(max(now - sent, 1e-6))
        self._samples += 1
        if self._samples >= LATENCY_SAMPLES:
            self._compare(now)
        self._outcome(now, in_flight, pushed_back=0)

    def pushed_back(self, sent: float, now: float, in_flight: int) -> None:
        """Record that a request got a status that asks for fewer requests, or no answer in time."""
        if sent >= self._shrunk_at:
            self._outcome(now, in_flight, pushed_back=1)

    def start_over(self) -> None:
        """Reset to 1 after an outage, when the endpoint's capacity is unknown."""
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
            # If most were pushed back, shrink from what was in flight: the limit itself may never have been reached.
            tried = min(self._limit, 2.0 * self._peak) if share > 0.5 else self._limit
            self._shrink(now, tried * (1 - share / 2))
        self._begin_round()

    def _compare(self, now: float) -> None:
        """Compare the mean logarithm of the latest latencies with the usual one, and shrink if it has risen."""
        latest = self._sum / self._samples
        self._begin_samples()
        if self._usual is None:
            self._usual = latest
        risen = math.exp(latest) > SLOWER * math.exp(self._usual) + SLACK_S
        self._fell_from = max(self._fell_from, self._limit) if risen else 0.0
        if latest < self._usual or (risen and self._limit <= max(1.0, self._fell_from / 4)):
            self._usual += (latest - self._usual) * USUAL_FAST
        elif not risen:
            self._usual += (latest - self._usual) * USUAL_SLOW
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


class RateLimit:
    """At most `rate_per_s` requests per second, evenly spaced, with bursts of BURST_S.

    A token bucket, stored as the time at which it would be full (the generic cell rate algorithm).
    """

    BURST_S = 0.1

    def __init__(self, rate_per_s: float) -> None:
        self._interval_s = 1 / rate_per_s
        self._full_at = -math.inf

    def wait_s(self, now: float) -> float:
        return max(0.0, self._full_at - now - self.BURST_S) if self._full_at > now else 0.0

    def take(self, now: float) -> None:
        self._full_at = max(self._full_at, now) + self._interval_s
