"""How many requests an endpoint gets at a time, by simulation: servers that are quick, slow, small, refusing."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator
from itertools import chain, count

import numpy as np
import pytest

from actors.endpoints.limits import START, AdaptiveLimit, Pace

Server = Callable[[float, int], tuple[float, bool]]
"""(time, requests under way, this one included) -> its latency in seconds, whether it is pushed back."""


def play(limit: AdaptiveLimit, server: Server, until: float, since: float = 0.0, wanted: int = 10**6) -> Iterator[int]:
    """As many requests as the limit lets out, of `wanted` at most, for a while; the limit after each answer."""
    under_way: list[tuple[float, float, bool]] = []
    now, most = since, min(limit.now, wanted)
    while now < until:
        while len(under_way) < most:
            latency_s, pushed_back = server(now, len(under_way) + 1)
            heapq.heappush(under_way, (now + latency_s, now, pushed_back))
        in_flight = len(under_way)
        now, sent, pushed_back = heapq.heappop(under_way)
        note = limit.pushed_back if pushed_back else limit.answered
        note(sent, now, in_flight)
        yield limit.now
        most = min(limit.now, wanted)


def log_normal(seed: int) -> Callable[[], float]:
    """Latencies with a median of 0.2 s and a 99th percentile of 2 s."""
    rng, median, sigma = np.random.default_rng(seed), math.log(0.2), math.log(10) / 2.326
    return chain.from_iterable(rng.lognormal(median, sigma, 10_000).tolist() for _ in count()).__next__


def mean(values: list[int]) -> float:
    return sum(values) / len(values)


def test_it_begins_small_and_doubles_in_each_round_trip_up_to_its_end() -> None:
    limit = AdaptiveLimit(256)
    assert limit.now == START
    *_, last = play(limit, lambda now, n: (0.2, False), until=1.0)
    assert last == 256
    assert AdaptiveLimit(3).now == 3


@pytest.mark.parametrize("most", [8, 64, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_the_natural_spread_of_latencies_does_not_shrink_it(most: int, seed: int) -> None:
    latency = log_normal(seed)
    limit = AdaptiveLimit(most)
    seen = list(play(limit, lambda now, n: (latency(), False), until=20_000 / most))
    assert len(seen) > 10_000
    assert min(seen[len(seen) // 4 :]) == most


def test_a_limit_that_nobody_uses_does_not_grow() -> None:
    limit = AdaptiveLimit(64)
    assert set(play(limit, lambda now, n: (0.2, False), until=20, wanted=5)) == {START}


def test_a_server_that_slows_down_under_load_is_not_given_more_than_it_bears() -> None:
    """Eight requests at a time take 0.2 s, more of them share the same hands."""
    limit = AdaptiveLimit(1000)
    seen = list(play(limit, lambda now, n: (0.2 * max(1.0, n / 8), False), until=300))
    assert 8 <= mean(seen[len(seen) // 2 :]) < 100


def test_a_server_that_refuses_what_is_too_much_gets_what_it_can_take() -> None:
    latency = log_normal(1)
    limit = AdaptiveLimit(512)

    def server(now: float, n: int) -> tuple[float, bool]:
        return (0.01, True) if n > 20 else (latency(), False)

    seen = list(play(limit, server, until=120))
    assert 10 < mean(seen[len(seen) // 2 :]) < 40


def test_refusals_all_over_bring_it_down_to_one_and_it_comes_back() -> None:
    latency = log_normal(2)
    limit = AdaptiveLimit(64)
    assert list(play(limit, lambda now, n: (latency(), False), until=20))[-1] == 64
    seen = list(play(limit, lambda now, n: (0.05, True), until=21, since=20))
    assert seen[-1] == 1
    assert list(play(limit, lambda now, n: (latency(), False), until=60, since=21))[-1] == 64


def test_half_of_the_answers_refused_at_random_leave_it_above_one() -> None:
    rng, latency = random.Random(3), log_normal(3)
    limit = AdaptiveLimit(64)
    seen = list(play(limit, lambda now, n: (latency(), rng.random() < 0.5), until=300))
    assert mean(seen) > 2
    assert len(seen) > 1000


def test_a_few_refusals_cost_little() -> None:
    rng, latency = random.Random(4), log_normal(4)
    limit = AdaptiveLimit(64)
    seen = list(play(limit, lambda now, n: (latency(), rng.random() < 0.02), until=300))
    assert mean(seen[len(seen) // 4 :]) > 50


def test_one_burst_of_refusals_counts_once_for_its_round_trip() -> None:
    limit = AdaptiveLimit(16)
    for _ in range(16):
        limit.pushed_back(sent=1.0, now=2.0, in_flight=16)
    assert limit.now == 8
    for _ in range(100):
        limit.pushed_back(sent=1.9, now=2.5, in_flight=8)  # sent before it was known
    assert limit.now == 8
    for _ in range(8):
        limit.pushed_back(sent=2.1, now=3.0, in_flight=8)
    assert limit.now == 4


def test_a_quick_endpoint_is_not_held_to_milliseconds() -> None:
    limit = AdaptiveLimit(64)
    list(play(limit, lambda now, n: (0.002, False), until=5))
    assert min(play(limit, lambda now, n: (0.03, False), until=10, since=5)) == 64


def test_latencies_that_stay_higher_become_the_usual_ones() -> None:
    limit = AdaptiveLimit(64)
    list(play(limit, lambda now, n: (0.2, False), until=20))
    shrunk = min(play(limit, lambda now, n: (1.0, False), until=60, since=20))
    assert shrunk < 32
    assert list(play(limit, lambda now, n: (1.0, False), until=300, since=60))[-1] == 64


def test_after_an_outage_it_starts_at_one() -> None:
    limit = AdaptiveLimit(64)
    limit.start_over()
    assert limit.now == 1
    limit.answered(sent=0.0, now=0.2, in_flight=1)
    assert limit.now == 2


@pytest.mark.parametrize("rate", [0.5, 20.0, 1000.0])
def test_no_more_than_the_rate_goes_out_in_any_second_but_the_burst(rate: float) -> None:
    pace, now, sent = Pace(rate), 0.0, []
    while now < 20:
        now += pace.wait_s(now)
        pace.take(now)
        sent.append(now)
    assert len(sent) >= 19 * rate
    for begin in range(0, 19):
        assert sum(begin <= at < begin + 1 for at in sent) <= rate * 1.1 + 1
