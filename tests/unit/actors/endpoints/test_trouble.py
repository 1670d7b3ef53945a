"""An endpoint in trouble: outages, open breakers and slow answers; and every call is counted once."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace

import pytest
from aiohttp import web

from agent_rft.actors.runtime.timing import Timing
from agent_rft.errors import EndpointRefused, ToolFailed
from tests.support.fakes_http import FakeEndpoint, FakeTime, Received, one_by_one, until, unused_port
from tests.unit.actors.conftest import Connect


async def test_one_call_s_retry_after_delays_the_others_too(connect: Connect) -> None:
    fake, woken = FakeTime(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        fake.slept.append(seconds)
        await woken.wait()

    async with FakeEndpoint(one_by_one([(429, "later"), (200, {})], Retry_After="7")) as server:
        client = connect(server.url, replace(fake.timing(), sleep=sleep), timeout_s=30)
        first = asyncio.create_task(client.post({}, "call_1"))
        await until(lambda: fake.slept == [7.0])
        second = asyncio.create_task(client.post({}, "call_2"))
        await until(lambda: fake.slept == [7.0, 7.0])
        assert len(server.received) == 1
        fake.now = 7.0
        woken.set()
        assert (await first).ok and (await second).ok


async def test_retry_after_delays_the_queued_calls(connect: Connect) -> None:
    fake, woken, answer_now = FakeTime(), asyncio.Event(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        await woken.wait()

    async def behave(request: Received) -> web.StreamResponse:
        await answer_now.wait()
        if request.number == 1:
            return web.Response(status=429, headers={"Retry-After": "7"})
        return web.json_response({})

    async with FakeEndpoint(behave) as server:
        client = connect(server.url, replace(fake.timing(), sleep=sleep), max_concurrency=1)
        calls = [asyncio.create_task(client.post({}, f"call_{i}")) for i in range(20)]
        await until(lambda: len(server.received) == 1 and client.stats()["queued"] == 19)
        answer_now.set()
        await until(lambda: client.stats()["backpressure_retries"] == 1)
        assert (client.stats()["in_flight"], client.stats()["queued"]) == (0, 19)
        fake.now = 7.0
        woken.set()
        assert all(answer.ok for answer in await asyncio.gather(*calls))
    assert len(server.received) == 21


async def test_an_outage_of_a_minute_loses_no_call_of_many(connect: Connect) -> None:
    """Without the breaker, each call would use up its three retries in seconds."""
    up_at = time.monotonic() + 0.5

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 100)

    async def behave(request: Received) -> web.StreamResponse:
        return web.json_response({}, status=200 if time.monotonic() > up_at else 500)

    async with FakeEndpoint(behave) as server:
        timing = Timing(clock=lambda: time.monotonic() * 100, sleep=sleep)
        client = connect(server.url, timing, timeout_s=600, max_retries=3)
        answers = await asyncio.gather(*(client.post({}, f"call_{i}", f"trace_{i}") for i in range(64)))
    assert all(answer.ok for answer in answers)
    assert len(server.received) < 64 * 3
    stats = client.stats()
    assert (stats["answered"], stats["failed"], stats["breaker"]) == (64, 0, "closed")
    assert stats["outages"] == 1 and 32 < stats["delayed"] <= 64


@pytest.mark.parametrize("status", [500, 503])
async def test_an_endpoint_that_fails_half_of_the_time_makes_progress(connect: Connect, status: int) -> None:
    chance = random.Random(1)

    async def behave(request: Received) -> web.StreamResponse:
        return web.json_response({}, status=status if chance.random() < 0.5 else 200)

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 1000)

    async with FakeEndpoint(behave) as server:
        client = connect(server.url, Timing(sleep=sleep), timeout_s=60, max_retries=10)
        done = await asyncio.gather(*(client.post({}, f"call_{i}") for i in range(200)), return_exceptions=True)
    assert sum(not isinstance(answer, BaseException) for answer in done) >= 199


async def test_a_call_that_waits_for_an_open_breaker_fails_at_its_deadline_with_the_reason(connect: Connect) -> None:
    woken = asyncio.Event()

    async def sleep(seconds: float) -> None:
        await woken.wait()

    url = f"http://127.0.0.1:{unused_port()}/x"
    client = connect(url, Timing(sleep=sleep), timeout_s=0.3)
    calls = [asyncio.create_task(client.post({}, f"call_{i}")) for i in range(6)]
    await until(lambda: client.stats()["breaker"] == "open")
    with pytest.raises(
        ToolFailed, match=r"no answer by the deadline.*the endpoint is down: no connection \(Connection refused\)"
    ):
        await client.post({}, "call_late")
    await asyncio.gather(*calls, return_exceptions=True)
    assert client.stats()["queued"] == 0


async def test_a_hedge_overtakes_a_first_request_that_hangs(connect: Connect) -> None:
    async def behave(request: Received) -> web.StreamResponse:
        if request.number == 1:
            await asyncio.Event().wait()
        return web.json_response({})

    fake = FakeTime()
    async with FakeEndpoint(behave) as server:
        client = connect(server.url, fake.timing(), hedge_after_s=2.0, max_retries=1)
        assert (await client.post({"x": 1}, "call_1")).ok
        await until(lambda: server.open_now == 0)
        first, second = server.received
        stats = client.stats()
    assert first.body == second.body
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"] == "call_1"
    assert set(fake.slept) == {2.0}
    assert [stats[name] for name in ("calls", "answered", "hedges", "hedges_won", "retries")] == [1, 1, 1, 1, 0]
    assert (stats["in_flight"], stats["queued"]) == (0, 0)


async def test_a_failed_hedge_does_not_affect_the_first_request(connect: Connect) -> None:
    hedged = asyncio.Event()

    async def behave(request: Received) -> web.StreamResponse:
        if request.number == 2:
            hedged.set()
            return web.json_response({}, status=500)
        await hedged.wait()
        await asyncio.sleep(0.02)
        return web.json_response({"n": request.number})

    async with FakeEndpoint(behave) as server:
        client = connect(server.url, hedge_after_s=2.0, max_retries=1)
        answer = await client.post({}, "call_1")
        stats = client.stats()
    assert answer.json() == {"n": 1}
    assert (stats["hedges"], stats["hedges_won"]) == (1, 0)


async def test_if_the_hedge_hangs_too_another_is_sent_up_to_max_retries(connect: Connect) -> None:
    async def behave(request: Received) -> web.StreamResponse:
        if request.number < 3:
            await asyncio.Event().wait()
        return web.json_response({"n": request.number})

    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await until(lambda: len(server.received) == len(slept))

    async with FakeEndpoint(behave) as server:
        client = connect(server.url, Timing(sleep=sleep), hedge_after_s=2.0, max_retries=2)
        assert (await client.post({}, "call_1")).json() == {"n": 3}
        await until(lambda: server.open_now == 0)
    assert len(server.received) == 3
    assert client.stats()["hedges"] == 2


async def test_a_401_of_both_requests_is_one_failure(connect: Connect) -> None:
    both = asyncio.Barrier(2)

    async def behave(request: Received) -> web.StreamResponse:
        await both.wait()
        return web.json_response({}, status=401)

    async with FakeEndpoint(behave) as server:
        client = connect(server.url, hedge_after_s=2.0, max_retries=1)
        with pytest.raises(EndpointRefused):
            await client.post({}, "call_1")
    stats = client.stats()
    assert (len(server.received), stats["hedges"], stats["failed"], stats["errors"]) == (2, 1, 1, {"refused": 1})


async def test_a_hedge_never_waits_in_the_queue(connect: Connect) -> None:
    release = asyncio.Event()

    async def behave(request: Received) -> web.StreamResponse:
        await release.wait()
        return web.json_response({})

    async with FakeEndpoint(behave) as server:
        client = connect(server.url, hedge_after_s=2.0, max_concurrency=1)
        call = asyncio.create_task(client.post({}, "call_1"))
        await until(lambda: server.open_now == 1)
        await asyncio.sleep(0)
        release.set()
        assert (await call).ok
    assert len(server.received) == 1


async def test_a_failure_before_the_hedge_is_due_is_retried_as_usual(connect: Connect) -> None:
    woken = asyncio.Event()

    async def sleep(seconds: float) -> None:
        if seconds == 2.0:
            await woken.wait()

    async with FakeEndpoint(one_by_one([(500, "oops"), (200, {})])) as server:
        client = connect(server.url, Timing(sleep=sleep), hedge_after_s=2.0)
        assert (await client.post({}, "call_1")).retries == 1
        assert client.stats()["hedges"] == 0


async def test_every_call_is_counted_once_however_it_ends(connect: Connect) -> None:
    chance = random.Random(7)

    async def behave(request: Received) -> web.StreamResponse:
        await asyncio.sleep(chance.random() / 100)
        if chance.random() < 0.1:
            request.drop()
        return web.json_response({}, status=chance.choice([200, 200, 404, 429, 500, 503]))

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 1000)

    async with FakeEndpoint(behave) as server:
        client = connect(server.url, Timing(sleep=sleep), timeout_s=2, max_retries=1, max_concurrency=8)
        calls = [asyncio.create_task(client.post({}, f"call_{i}", f"trace_{i % 7}")) for i in range(150)]
        await until(lambda: len(server.received) > 40, within_s=10)
        for call in chance.sample(calls, 30):
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        stats = client.stats()
    assert stats["calls"] == 150 == stats["answered"] + stats["failed"] + stats["cancelled"]
    assert stats["failed"] == sum(stats["errors"].values())
    assert (stats["in_flight"], stats["queued"]) == (0, 0)
    assert server.most_open <= 8
    assert sum(stats["latency_counts"]) <= len(server.received)
