"""Concurrency and rate limits of one endpoint.

The concurrency limit adapts to the endpoint's capacity, up to the configured maximum:

- The limit grows while at least half of the limit is in use. At first, each good answer raises the limit by one (slow
  start). After the first decrease, the limit grows by sqrt(limit) per round trip.
- Rejected and late requests shrink the limit, as in DCTCP (RFC 8257). If their share in a round trip is f, the limit is
  multiplied by 1 - f / 2. For example, if all requests get a 429, the limit is halved.
- If latency rises well above normal, the limit is halved, similar to Gradient2 in Netflix's concurrency-limits.
"""

from __future__ import annotations

import math

START = 16
"""The initial limit: high enough not to slow down a job, low enough not to overload a small server."""
ROUND = 4
"""Minimum number of requests before the limit may shrink, so that one rejected call has little effect."""
LATENCY_SAMPLES = 50
"""Number of recent latencies whose mean is compared with the usual latency."""
SLOWER = 2.0
"""Ratio of current to usual latency above which the limit shrinks."""
SLACK_S = 0.05
"""Tolerance in seconds. The limit shrinks if the latency exceeds SLOWER * (usual latency) + SLACK_S."""
USUAL_FAST, USUAL_SLOW = 0.2, 0.005
"""Two weights of the latest latency in the moving average that gives the usual latency.

USUAL_FAST applies if latency falls, or stays high after the limit has shrunk to a quarter. USUAL_SLOW applies to small
increases."""


class AdaptiveLimit:
    """Concurrency limit between 1 and `maximum`. All times are seconds on the same clock.

    After the limit shrinks, outcomes of requests that were sent before are ignored. The limit therefore shrinks at most
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
    def current(self) -> int:
        return int(self._limit)

    def record_answer(self, sent: float, now: float, in_flight: int) -> None:
        """Record an answer to the request sent at `sent`; `in_flight` counts requests in flight, including this one."""
        if sent < self._shrunk_at:
            return
        # Answers do not justify a higher limit with few requests in flight, or after latency has risen.
        if 2 * in_flight >= self._limit and not self._fell_from:
            step = 1.0 if self._slow_start else 1.0 / math.sqrt(self._limit)
            self._limit = min(float(self.maximum), self._limit + step)
        self._sum += math.log(max(now - sent, 1e-6))
        self._samples += 1
        if self._samples >= LATENCY_SAMPLES:
            self._compare_latencies(now)
        self._record_outcome(now, in_flight, pushed_back=0)

    def record_throttled(self, sent: float, now: float, in_flight: int) -> None:
        """Record that the endpoint asked for fewer requests, or did not answer in time."""
        if sent >= self._shrunk_at:
            self._record_outcome(now, in_flight, pushed_back=1)

    def reset(self) -> None:
        """Reset the limit to 1 after an outage, when the endpoint's capacity is unknown."""
        self._limit, self._slow_start, self._fell_from = 1.0, True, 0.0
        self._begin_round()
        self._begin_samples()

    def _record_outcome(self, now: float, in_flight: int, pushed_back: int) -> None:
        self._outcomes += 1
        self._pushed_back += pushed_back
        self._peak = max(self._peak, in_flight)
        if self._outcomes < max(self._peak, ROUND):
            return
        share = self._pushed_back / self._outcomes
        if share:
            # If most failed, start from at most twice the peak in flight, since the limit may never have been reached.
            tried = min(self._limit, 2.0 * self._peak) if share > 0.5 else self._limit
            self._shrink(now, tried * (1 - share / 2))
        self._begin_round()

    def _compare_latencies(self, now: float) -> None:
        """Compare the latest latencies with the usual latency; shrink the limit if they are much higher."""
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


class RequestRateLimit:
    """Rate limit of `rate_per_s` requests per second. Requests are evenly spaced, except for bursts.

    A burst contains at most the requests that are allowed in BURST_S seconds. The limit is a token bucket that stores
    only the time at which the bucket will be full (generic cell rate algorithm).
    """

    BURST_S = 0.1

    def __init__(self, rate_per_s: float) -> None:
        self._interval_s = 1 / rate_per_s
        self._full_at = -math.inf

    def wait_s(self, now: float) -> float:
        return max(0.0, self._full_at - now - self.BURST_S) if self._full_at > now else 0.0

    def take_token(self, now: float) -> None:
        self._full_at = max(self._full_at, now) + self._interval_s
