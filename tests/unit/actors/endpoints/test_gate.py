"""Permits of one endpoint: none is lost, no rollout starves, and all limits are kept."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rft.actors.endpoints.adaptive_limit import AdaptiveLimit, RequestRateLimit
from agent_rft.actors.endpoints.breaker import (
    FIRST_WAIT_S,
    MAX_FAILURES,
    MAX_PROBE_WAIT_S,
    NO_CONNECTION_WEIGHT,
    Breaker,
)
from agent_rft.actors.endpoints.gate import MAX_ON_WIRE, MAX_PAUSE_S, Gate, Permit, RequestOutcome, SocketLimit
from agent_rft.actors.runtime.timing import REAL_TIMING, Timing
from tests.support.fakes_http import FakeTime


def gate(
    maximum: int, timing: Timing = REAL_TIMING, sockets: SocketLimit | None = None, rate: float | None = None
) -> Gate:
    rate_limit = None if rate is None else RequestRateLimit(rate)
    return Gate(AdaptiveLimit(maximum), rate_limit, Breaker(timing), sockets or SocketLimit(100), timing)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def fail(one: Gate, times: int, end: RequestOutcome = RequestOutcome.FAILED) -> None:
    for _ in range(times):
        one.leave(await one.enter(""), end, "HTTP 500")


async def test_one_rollout_with_fifty_calls_does_not_starve_the_others() -> None:
    one = gate(1)
    order: list[str] = []

    async def call(trace: str) -> None:
        permit = await one.enter(trace)
        order.append(trace)
        await asyncio.sleep(0)
        one.leave(permit, RequestOutcome.ANSWERED)

    held = await one.enter("crowd")
    calls = [asyncio.create_task(call(trace)) for trace in ["crowd"] * 50 + ["a", "b", "a"]]
    await settle()
    assert (one.in_flight, one.queued) == (1, 53)
    one.limit.reset()
    one.leave(held, RequestOutcome.GIVEN_UP)
    await asyncio.gather(*calls)
    assert order.index("a") <= 2 and order.index("b") <= 4
    assert order.count("crowd") == 50
    assert one.queued == one.in_flight == 0


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 6))
def test_cancelling_never_loses_a_permit(seed: int, maximum: int, num_sockets: int) -> None:
    rng = random.Random(seed)

    async def play() -> None:
        sockets = SocketLimit(num_sockets)
        gates = [gate(maximum, sockets=sockets), gate(maximum, sockets=sockets, rate=1e5)]

        async def call(one: Gate) -> None:
            permit = await one.enter(rng.choice("abc"))
            try:
                for _ in range(rng.randrange(3)):
                    await asyncio.sleep(0)
            finally:
                one.leave(permit, rng.choice([RequestOutcome.ANSWERED, RequestOutcome.GIVEN_UP, RequestOutcome.BUSY]))

        calls = [asyncio.create_task(call(rng.choice(gates))) for _ in range(60)]
        for _ in range(30):
            rng.choice(calls).cancel()
            if rng.random() < 0.5:
                await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
        await settle()
        assert [(one.in_flight, one.queued) for one in gates] == [(0, 0), (0, 0)]
        permits = [await gates[0].enter("again")]
        gates[0].leave(permits[0], RequestOutcome.GIVEN_UP)
        assert all(sockets.acquire(gates[0]) for _ in range(num_sockets))
        assert not sockets.acquire(gates[0])

    asyncio.run(play())


async def test_open_requests_of_all_endpoints_are_bounded_and_shared_in_turn() -> None:
    sockets = SocketLimit(2)
    first, second = gate(10, sockets=sockets), gate(10, sockets=sockets)
    permits = [await first.enter("a"), await first.enter("a")]
    waiting = [asyncio.create_task(one.enter("a")) for one in (first, second, first, second)]
    await settle()
    assert [task.done() for task in waiting] == [False] * 4
    first.leave(permits[0], RequestOutcome.ANSWERED)
    await settle()
    assert [task.done() for task in waiting] == [True, False, False, False]
    first.leave(permits[1], RequestOutcome.ANSWERED)
    await settle()
    assert [task.done() for task in waiting] == [True, True, False, False]
    waiting[2].cancel()
    await settle()
    second.leave(waiting[1].result(), RequestOutcome.ANSWERED)  # a gate in the queue has no waiting call left
    await settle()
    assert waiting[3].done()


def test_sockets_are_at_most_what_the_process_may_open() -> None:
    sockets = SocketLimit.from_process_limits()
    assert 1 <= sum(sockets.acquire(gate(1)) for _ in range(MAX_ON_WIRE + 1)) <= MAX_ON_WIRE


async def test_retry_after_delays_the_other_calls_too() -> None:
    fake = FakeTime()
    one = gate(10, fake.timing())
    one.pause(7)
    one.pause(2)
    assert (await one.enter("b")).sent_at == 7.0
    one.pause(86_400)
    assert (await one.enter("b")).sent_at == 7.0 + MAX_PAUSE_S


async def test_a_rate_is_kept_whatever_the_concurrency() -> None:
    fake = FakeTime()
    one = gate(1000, fake.timing(), rate=5)
    sent = []
    for _ in range(11):
        permit = await one.enter("a")
        sent.append(permit.sent_at)
        one.leave(permit, RequestOutcome.ANSWERED)
    assert sent == pytest.approx([0.0, *(i / 5 - RequestRateLimit.BURST_S for i in range(1, 11))])


# -- the breaker -------------------------------------------------------------------------------------------------------


async def test_the_breaker_opens_after_failures_in_a_row_and_probes_with_doubling_waits() -> None:
    fake = FakeTime()
    one = gate(100, fake.timing())
    await fail(one, MAX_FAILURES - 1)
    assert one.breaker.state == "closed"
    await fail(one, 1)
    assert (one.breaker.state, fake.now) == ("open", 0.0)
    sent = []
    for _ in range(8):
        permit = await one.enter("a")
        assert one.breaker.state == "half_open"
        sent.append(permit.sent_at)
        one.leave(permit, RequestOutcome.FAILED, "HTTP 500")
        assert one.breaker.state == "open"
    waits = [after - before for before, after in zip([0.0, *sent], sent, strict=False)]
    assert waits == [FIRST_WAIT_S, 2, 4, 8, 16, MAX_PROBE_WAIT_S, MAX_PROBE_WAIT_S, MAX_PROBE_WAIT_S]


async def test_waits_of_an_open_breaker_have_jitter() -> None:
    fake = FakeTime()
    one = gate(100, replace(fake.timing(), jitter=lambda: 0.8))
    await fail(one, MAX_FAILURES)
    assert (await one.enter("a")).sent_at == pytest.approx(0.8)


async def test_call_counts_once_as_delayed_however_often_it_waits_during_an_outage() -> None:
    one = gate(1, FakeTime().timing())
    await fail(one, MAX_FAILURES - 1)
    held = await one.enter("a")
    waiting = [asyncio.create_task(one.enter("a", call=f"call {i}")) for i in range(3)]
    await settle()
    assert one.delayed == 0
    one.leave(held, RequestOutcome.FAILED, "HTTP 500")
    assert (one.breaker.times_opened, one.delayed) == (1, 3)
    for waiter in waiting:
        one.leave(await waiter, RequestOutcome.FAILED, "HTTP 500")
    again = [asyncio.create_task(one.enter("a", 1, f"call {i}")) for i in range(4)]
    await settle()
    assert (one.breaker.times_opened, one.delayed) == (1, 4)
    for waiter in again:
        one.leave(await waiter, RequestOutcome.ANSWERED)
    await fail(one, MAX_FAILURES)
    one.leave(await one.enter("a", call="call 0"), RequestOutcome.ANSWERED)
    assert (one.breaker.times_opened, one.delayed) == (2, 5)


async def test_five_attempts_without_a_connection_are_enough() -> None:
    one = gate(100, FakeTime().timing())
    await fail(one, MAX_FAILURES // NO_CONNECTION_WEIGHT, RequestOutcome.NO_CONNECTION)
    assert one.breaker.is_open


async def test_an_open_breaker_lets_one_probe_through_at_a_time() -> None:
    fake = FakeTime()
    one = gate(100, fake.timing())
    await fail(one, MAX_FAILURES)
    fake.now = 1.0
    probe = await one.enter("a")
    assert one.try_enter() is None
    others = [asyncio.create_task(one.enter("a")) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in others)
    one.leave(probe, RequestOutcome.ANSWERED)
    assert one.breaker.state == "closed"
    await settle()
    assert sum(task.done() for task in others) == 1  # the limit starts again at one
    one.leave(others[0].result(), RequestOutcome.ANSWERED)
    await asyncio.gather(*others)


async def test_the_call_that_has_failed_least_is_the_probe() -> None:
    woken = asyncio.Event()

    async def sleep(seconds: float) -> None:
        await woken.wait()

    fake = FakeTime()
    one = gate(100, replace(fake.timing(), sleep=sleep))
    await fail(one, MAX_FAILURES)
    calls = [asyncio.create_task(one.enter(lane, failures)) for lane, failures in (("a", 2), ("a", 0), ("b", 1))]
    await settle()
    fake.now = 1.0
    woken.set()
    await settle()
    assert [call.done() for call in calls] == [False, True, False]
    for call in calls:
        call.cancel()
    one.close()


async def test_a_cancelled_probe_does_not_block_the_next_one() -> None:
    fake = FakeTime()
    one = gate(100, fake.timing())
    await fail(one, MAX_FAILURES)
    one.leave(await one.enter("a"), RequestOutcome.GIVEN_UP)
    assert one.breaker.state == "open"
    assert isinstance(await one.enter("a"), Permit)


async def test_probes_that_take_hours_never_exceed_max_concurrency() -> None:
    fake = FakeTime()
    one = gate(3, fake.timing())
    await fail(one, MAX_FAILURES)
    waiting = [asyncio.create_task(one.enter(f"trace_{i}")) for i in range(10)]
    for _ in range(100):
        fake.now += MAX_PROBE_WAIT_S
        one.admit_waiting()
        await settle()
    assert (one.in_flight, one.queued) == (3, 7)
    one.leave(next(call.result() for call in waiting if call.done()), RequestOutcome.ANSWERED)
    assert one.breaker.state == "closed"
    for call in waiting:
        call.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    one.close()


async def test_a_hanging_probe_does_not_block_the_next_one() -> None:
    fake = FakeTime()
    one = gate(100, fake.timing())
    await fail(one, MAX_FAILURES)
    hanging = await one.enter("a")
    one.leave(await one.enter("b"), RequestOutcome.ANSWERED)
    assert one.breaker.state == "closed"
    one.leave(hanging, RequestOutcome.GIVEN_UP)
    assert one.in_flight == 0


async def test_random_failures_of_half_of_all_calls_do_not_open_the_breaker() -> None:
    rng = random.Random(0)
    one = gate(100, FakeTime().timing())
    for _ in range(20_000):
        one.leave(await one.enter("a"), rng.choice([RequestOutcome.FAILED, RequestOutcome.ANSWERED]), "")
        assert not one.breaker.is_open


async def test_a_pushed_back_request_counts_as_a_sign_of_life() -> None:
    one = gate(100, FakeTime().timing())
    for _ in range(50):
        await fail(one, MAX_FAILURES - 1)
        await fail(one, 1, RequestOutcome.BUSY)
    assert not one.breaker.is_open
