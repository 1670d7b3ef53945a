"""The adaptive limit against simulated servers: fast, slow, small and overloaded ones."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator
from itertools import chain, count

import numpy as np
import pytest

from agent_rft.actors.endpoints.adaptive_limit import START, AdaptiveLimit, RequestRateLimit

Server = Callable[[float, int], tuple[float, bool]]
"""(time, requests in flight including this one) -> latency in seconds, whether the request is pushed back."""


def play(limit: AdaptiveLimit, server: Server, until: float, since: float = 0.0, wanted: int = 10**6) -> Iterator[int]:
    """Send as many requests as the limit and `wanted` allow; yields the limit after each outcome."""
    in_flight: list[tuple[float, float, bool]] = []
    now, allowed = since, min(limit.current, wanted)
    while now < until:
        while len(in_flight) < allowed:
            latency_s, pushed_back = server(now, len(in_flight) + 1)
            heapq.heappush(in_flight, (now + latency_s, now, pushed_back))
        num_in_flight = len(in_flight)
        now, sent, pushed_back = heapq.heappop(in_flight)
        note = limit.record_throttled if pushed_back else limit.record_answer
        note(sent, now, num_in_flight)
        yield limit.current
        allowed = min(limit.current, wanted)


def log_normal(seed: int) -> Callable[[], float]:
    """Latencies with a median of 0.2 s and a 99th percentile of 2 s."""
    rng, median, sigma = np.random.default_rng(seed), math.log(0.2), math.log(10) / 2.326
    return chain.from_iterable(rng.lognormal(median, sigma, 10_000).tolist() for _ in count()).__next__


def mean(values: list[int]) -> float:
    return sum(values) / len(values)


def test_it_starts_small_and_doubles_each_round_trip_up_to_the_maximum() -> None:
    limit = AdaptiveLimit(256)
    assert limit.current == START
    *_, last = play(limit, lambda now, n: (0.2, False), until=1.0)
    assert last == 256
    assert AdaptiveLimit(3).current == 3


@pytest.mark.parametrize("maximum", [8, 64, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_the_natural_spread_of_latencies_does_not_shrink_it(maximum: int, seed: int) -> None:
    latency = log_normal(seed)
    limit = AdaptiveLimit(maximum)
    seen = list(play(limit, lambda now, n: (latency(), False), until=20_000 / maximum))
    assert len(seen) > 10_000
    assert min(seen[len(seen) // 4 :]) == maximum


def test_an_unused_limit_does_not_grow() -> None:
    limit = AdaptiveLimit(64)
    assert set(play(limit, lambda now, n: (0.2, False), until=20, wanted=5)) == {START}


def test_a_server_that_slows_down_under_load_is_not_overloaded() -> None:
    """Up to eight concurrent requests take 0.2 s each; more share the same capacity."""
    limit = AdaptiveLimit(1000)
    seen = list(play(limit, lambda now, n: (0.2 * max(1.0, n / 8), False), until=300))
    assert 8 <= mean(seen[len(seen) // 2 :]) < 100


def test_a_server_that_rejects_excess_requests_gets_what_it_can_handle() -> None:
    latency = log_normal(1)
    limit = AdaptiveLimit(512)

    def server(now: float, n: int) -> tuple[float, bool]:
        return (0.01, True) if n > 20 else (latency(), False)

    seen = list(play(limit, server, until=120))
    assert 10 < mean(seen[len(seen) // 2 :]) < 40


def test_rejections_of_all_requests_bring_it_down_to_one_and_it_recovers() -> None:
    latency = log_normal(2)
    limit = AdaptiveLimit(64)
    assert list(play(limit, lambda now, n: (latency(), False), until=20))[-1] == 64
    seen = list(play(limit, lambda now, n: (0.05, True), until=21, since=20))
    assert seen[-1] == 1
    assert list(play(limit, lambda now, n: (latency(), False), until=60, since=21))[-1] == 64


def test_random_rejections_of_half_of_the_requests_leave_it_above_one() -> None:
    rng, latency = random.Random(3), log_normal(3)
    limit = AdaptiveLimit(64)
    seen = list(play(limit, lambda now, n: (latency(), rng.random() < 0.5), until=300))
    assert mean(seen) > 2
    assert len(seen) > 1000


def test_a_few_rejections_cost_little() -> None:
    rng, latency = random.Random(4), log_normal(4)
    limit = AdaptiveLimit(64)
    seen = list(play(limit, lambda now, n: (latency(), rng.random() < 0.02), until=300))
    assert mean(seen[len(seen) // 4 :]) > 50


def test_one_burst_of_rejections_counts_once_per_round_trip() -> None:
    limit = AdaptiveLimit(16)
    for _ in range(16):
        limit.record_throttled(sent=1.0, now=2.0, in_flight=16)
    assert limit.current == 8
    for _ in range(100):
        limit.record_throttled(sent=1.9, now=2.5, in_flight=8)  # sent before the limit shrank
    assert limit.current == 8
    for _ in range(8):
        limit.record_throttled(sent=2.1, now=3.0, in_flight=8)
    assert limit.current == 4


def test_millisecond_changes_of_a_fast_endpoint_are_ignored() -> None:
    limit = AdaptiveLimit(64)
    list(play(limit, lambda now, n: (0.002, False), until=5))
    assert min(play(limit, lambda now, n: (0.03, False), until=10, since=5)) == 64


def test_a_lasting_higher_latency_becomes_the_usual_one() -> None:
    limit = AdaptiveLimit(64)
    list(play(limit, lambda now, n: (0.2, False), until=20))
    shrunk = min(play(limit, lambda now, n: (1.0, False), until=60, since=20))
    assert shrunk < 32
    assert list(play(limit, lambda now, n: (1.0, False), until=300, since=60))[-1] == 64


def test_after_an_outage_it_starts_at_one() -> None:
    limit = AdaptiveLimit(64)
    limit.reset()
    assert limit.current == 1
    limit.record_answer(sent=0.0, now=0.2, in_flight=1)
    assert limit.current == 2


@pytest.mark.parametrize("rate", [0.5, 20.0, 1000.0])
def test_no_second_sees_more_requests_than_the_rate_and_one_burst(rate: float) -> None:
    limit, now, sent = RequestRateLimit(rate), 0.0, []
    while now < 20:
        now += limit.wait_s(now)
        limit.take_token(now)
        sent.append(now)
    assert len(sent) >= 19 * rate
    for start in range(0, 19):
        assert sum(start <= at < start + 1 for at in sent) <= rate * 1.1 + 1
