"""The retry layer: each rule of the wire contract, against a real server."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from aiohttp import web

from agent_rft.actors.endpoints.client import EndpointClient
from agent_rft.actors.endpoints.http_response import parse_retry_after_s
from agent_rft.actors.endpoints.network.endpoint_url_checks import find_endpoint_problem, redact_url
from agent_rft.actors.endpoints.network.http_transport import MAX_BODY_BYTES
from agent_rft.actors.runtime.timing import Timing
from agent_rft.errors import EndpointRefused, ToolFailed, UserError
from agent_rft.spec.endpoints import Endpoint
from tests.support.fakes_http import (
    LOCAL,
    FakeEndpoint,
    FakeTime,
    Received,
    hangs,
    one_by_one,
    says,
    until,
    unused_port,
)
from tests.unit.actors.conftest import Connect

SECRET = "sk-very-secret-4711"


@pytest.mark.parametrize("status", [408, 425, 429, 503])
async def test_a_busy_endpoint_is_retried_without_using_up_retries(connect: Connect, status: int) -> None:
    async with FakeEndpoint(one_by_one([(status, "busy")] * 6 + [(200, {"output": "x"})])) as server:
        answer = await connect(server.url).post({}, "call_1")
    assert (answer.status, answer.retries, len(server.received)) == (200, 0, 7)


async def test_retry_after_is_honored_in_seconds_and_as_a_date(connect: Connect) -> None:
    for value in ("7", "Thu, 01 Jan 1970 00:00:07 GMT"):
        fake = FakeTime()
        async with FakeEndpoint(one_by_one([(429, "later"), (200, {})], Retry_After=value)) as server:
            await connect(server.url, fake.timing()).post({}, "call_1")
        assert fake.slept == [7.0]


async def test_a_wait_beyond_the_deadline_ends_the_call_at_once(connect: Connect) -> None:
    fake = FakeTime()
    async with FakeEndpoint(says("later", 429, Retry_After="31")) as server:
        with pytest.raises(ToolFailed, match=r"429 Too Many Requests with Retry-After: 31 s.*deadline") as failed:
            await connect(server.url, fake.timing(), timeout_s=30).post({}, "call_1")
    assert fake.slept == []
    assert failed.value.details["kind"] == "busy"


async def test_503_forever_fails_at_the_deadline(connect: Connect) -> None:
    fake = FakeTime()
    async with FakeEndpoint(says("busy", 503)) as server:
        with pytest.raises(ToolFailed, match="503 Service Unavailable"):
            await connect(server.url, fake.timing(), timeout_s=60).post({}, "call_1")
    assert fake.slept[:5] == [0.5, 1, 2, 4, 7.5]
    assert 60 - 7.5 <= fake.now < 60


async def test_three_failures_are_retried(connect: Connect) -> None:
    fake = FakeTime()
    async with FakeEndpoint(one_by_one([(500, "oops"), (502, "oops"), (500, "oops"), (200, {})])) as server:
        answer = await connect(server.url, fake.timing()).post({}, "call_1")
    assert (answer.status, answer.retries) == (200, 3)
    assert fake.slept == [0.1, 1, 2]
    assert {request.headers["Idempotency-Key"] for request in server.received} == {"call_1"}


async def test_the_fourth_failure_ends_the_call_and_quotes_the_response(connect: Connect) -> None:
    async with FakeEndpoint(says("database is down", 500)) as server:
        with pytest.raises(ToolFailed, match=r"tool 'search' \(POST .*/run\).*database is down.*4 attempts") as failed:
            await connect(server.url).post({}, "call_1")
    assert len(server.received) == 1 + Endpoint().max_retries
    error = failed.value
    assert (error.message, error.fix) == (f"{error.problem}; {error.fix}", "check the endpoint's own log")
    assert error.details == {
        "problem": error.problem,
        "fix": error.fix,
        "endpoint": server.url,
        "kind": "server_error",
        "attempts": 4,
        "retries": 3,
    }


async def test_waits_do_not_use_up_the_retries(connect: Connect) -> None:
    answers = [(500, ""), (429, ""), (500, ""), (503, ""), (500, ""), (429, ""), (200, {})]
    async with FakeEndpoint(one_by_one(answers)) as server:
        assert (await connect(server.url).post({}, "call_1")).retries == 3


async def test_connection_refused_is_retried_then_fails_with_a_fix(connect: Connect) -> None:
    fake = FakeTime()
    with pytest.raises(
        ToolFailed, match=r"no connection \(Connection refused\).*check that the endpoint is running"
    ) as failed:
        await connect(f"http://127.0.0.1:{unused_port()}/x", fake.timing()).post({}, "call_1")
    assert fake.slept == [0.1, 1, 2]
    assert failed.value.details["kind"] == "connection"


async def test_a_dropped_connection_is_retried(connect: Connect) -> None:
    async def behave(request: Received) -> web.StreamResponse:
        if request.number < 3:
            request.drop()
        return web.json_response({})

    async with FakeEndpoint(behave) as server:
        answer = await connect(server.url).post({}, "call_1")
    assert (answer.status, answer.retries) == (200, 2)


async def test_an_incomplete_response_is_retried() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    client = EndpointClient(
        "tool 'search'", url, Endpoint(), ToolFailed, FakeTime().timing(), allowed_networks=LOCAL.allowed_networks
    )
    with pytest.raises(ToolFailed, match=r"the response is incomplete.*4 attempts"):
        await client.post({}, "call_1")
    await client.close()
    server.close()
    await server.wait_closed()


async def test_a_hanging_endpoint_fails_at_the_deadline(connect: Connect) -> None:
    async with FakeEndpoint(hangs) as server:
        start = time.monotonic()
        with pytest.raises(ToolFailed, match=r"no answer by the deadline of 0.1 s.*raise timeout_s") as failed:
            await connect(server.url, Timing(), timeout_s=0.1).post({}, "call_1")
        assert 0.09 < time.monotonic() - start < 1
        await until(lambda: server.open_now == 0)
    assert failed.value.details["kind"] == "deadline"


async def test_a_hanging_request_is_retried_after_the_attempt_timeout(connect: Connect) -> None:
    async def hangs_once(request: Received) -> web.Response:
        return await hangs(request) if len(server.received) == 1 else web.json_response({"output": "x"})

    async with FakeEndpoint(hangs_once) as server:
        client = connect(server.url, Timing(), timeout_s=60, attempt_timeout_s=0.05)
        answer = await client.post({}, "call_1")
    assert (answer.status, answer.retries) == (200, 1)
    keys = {received.headers["Idempotency-Key"] for received in server.received}
    assert keys == {"call_1"}


async def test_requests_that_always_hang_use_up_the_retries_and_the_error_says_so(connect: Connect) -> None:
    async with FakeEndpoint(hangs) as server:
        timing = replace(FakeTime().timing(), clock=time.monotonic)
        client = connect(server.url, timing, timeout_s=60, attempt_timeout_s=0.05, max_retries=2)
        with pytest.raises(
            ToolFailed, match=r"no answer within 0.05 s \(3 attempts.*raise attempt_timeout_s"
        ) as failed:
            await client.post({}, "call_1")
        assert len(server.received) == 3
    assert failed.value.details["kind"] == "timeout"


async def test_waiting_for_a_slot_counts_against_the_deadline_and_is_reported(connect: Connect) -> None:
    async with FakeEndpoint(hangs) as server:
        client = connect(server.url, Timing(), timeout_s=0.2, max_concurrency=1)
        first = asyncio.create_task(client.post({}, "call_1"))
        await until(lambda: server.open_now == 1)
        second = asyncio.create_task(client.post({}, "call_2"))
        errors = await asyncio.gather(first, second, return_exceptions=True)
    assert all(isinstance(error, ToolFailed) for error in errors)
    assert "waiting for one of" not in str(errors[0])
    assert " s for one of 1 slots" in str(errors[1])


@pytest.mark.parametrize("status", [401, 403])
async def test_401_and_403_stop_the_job_and_show_no_secret(connect: Connect, status: int) -> None:
    async with FakeEndpoint(says(f"bad key {SECRET}", status)) as server:
        url = server.url.replace("http://", f"http://user:{SECRET}@") + f"?key={SECRET}#{SECRET}"
        with pytest.raises(EndpointRefused) as refused:
            await connect(url, headers={"X-Key": SECRET}).post({}, "call_1")
    assert len(server.received) == 1
    assert server.received[0].headers["X-Key"] == SECRET
    assert server.url in str(refused.value) and str(status) in str(refused.value)
    assert SECRET not in f"{refused.value!r} {refused.value.details}"


async def test_an_echoed_secret_is_redacted_in_messages(connect: Connect) -> None:
    async with FakeEndpoint(says(f"cannot parse header Authorization: {SECRET}", 500)) as server:
        client = connect(server.url, headers={"Authorization": f"Bearer {SECRET}"})
        with pytest.raises(ToolFailed, match=r"Authorization: \[redacted\]") as failed:
            await client.post({}, "call_1")
    assert SECRET not in str(failed.value)


async def test_other_4xx_are_answers(connect: Connect) -> None:
    async with FakeEndpoint(says("no such document", 404)) as server:
        answer = await connect(server.url).post({}, "call_1")
    assert (answer.status, answer.text, answer.ok) == (404, "no such document", False)


async def test_redirects_are_not_followed(connect: Connect) -> None:
    async with FakeEndpoint(says("", 307, Location="/elsewhere")) as server:
        with pytest.raises(ToolFailed, match=r"307 Temporary Redirect.*set the final URL"):
            await connect(server.url).post({}, "call_1")
    assert len(server.received) == 1


async def test_a_huge_body_is_read_up_to_the_limit(connect: Connect) -> None:
    async with FakeEndpoint(says("x" * (MAX_BODY_BYTES + 1))) as server:
        answer = await connect(server.url).post({}, "call_1")
    assert answer.truncated
    assert len(answer.body) == MAX_BODY_BYTES


async def test_open_requests_never_exceed_max_concurrency(connect: Connect) -> None:
    async def behave(request: Received) -> web.StreamResponse:
        await asyncio.sleep(0.01)
        return web.json_response({})

    async with FakeEndpoint(behave) as server:
        client = connect(server.url, Timing(), max_concurrency=3)
        await asyncio.gather(*(client.post({}, f"call_{i}") for i in range(12)))
    assert server.most_open == 3


async def test_a_call_that_waits_to_retry_holds_no_slot(connect: Connect) -> None:
    woken = asyncio.Event()

    async def sleep(seconds: float) -> None:
        await woken.wait()

    async with FakeEndpoint(one_by_one([(429, "later"), (200, {})])) as server:
        client = connect(server.url, Timing(sleep=sleep), max_concurrency=1)
        first = asyncio.create_task(client.post({}, "call_1"))
        await until(lambda: len(server.received) == 1)
        assert (await client.post({}, "call_2")).ok
        assert not first.done()
        woken.set()
        assert (await first).ok


async def test_latency_is_that_of_the_attempt_that_answered(connect: Connect) -> None:
    async def behave(request: Received) -> web.StreamResponse:
        await asyncio.sleep(0.2 if request.number == 1 else 0.02)
        return web.json_response({}, status=500 if request.number == 1 else 200)

    async with FakeEndpoint(behave) as server:
        client = connect(server.url, Timing(jitter=lambda: 0.99), timeout_s=1)
        answer = await client.post({}, "call_1")
    assert 0.02 <= answer.latency_s < 0.15


async def test_cancelling_the_caller_closes_the_request_and_frees_its_slot(connect: Connect) -> None:
    async with FakeEndpoint(hangs) as server:
        client = connect(server.url, Timing(), max_concurrency=1)
        for _ in range(2):
            call = asyncio.create_task(client.post({}, "call_1"))
            await until(lambda: server.open_now == 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(lambda: server.open_now == 0)


async def test_cookies_of_one_call_are_not_sent_with_the_next(connect: Connect) -> None:
    async def behave(request: Received) -> web.StreamResponse:
        return web.json_response({}, headers={"Set-Cookie": "session=1; Path=/"})

    async with FakeEndpoint(behave) as server:
        client = connect(server.url)
        await client.post({}, "call_1")
        await client.post({}, "call_2")
    assert "Cookie" not in server.received[1].headers


async def test_jitter_at_most_halves_a_wait_and_only_adds_to_retry_after(connect: Connect) -> None:
    for headers, waits in (({}, [0.25, 0.5]), ({"Retry_After": "3"}, [3.1, 3.1])):
        fake = FakeTime()
        timing = replace(fake.timing(), jitter=lambda: 1.0)
        async with FakeEndpoint(one_by_one([(429, ""), (429, ""), (200, {})], **headers)) as server:
            await connect(server.url, timing).post({}, "call_1")
        assert fake.slept == waits


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("1.5", 1.5),
        ("-3", None),
        ("nan", None),
        ("soon", None),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 50.0),
        ("Thu, 01 Jan 1970 00:01:00 -0000", 50.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
    ],
)
def test_retry_after(value: str, seconds: float | None) -> None:
    assert parse_retry_after_s(value, now=10.0) == seconds


@pytest.mark.parametrize(
    ("url", "headers", "mistake"),
    [
        ("ftp://host/x", {}, "must start with http"),
        ("host/x", {}, "must start with http"),
        ("http://host:99999/", {}, "URL is invalid"),
        ("http://a..b/", {}, "URL is invalid"),
        ("http://host/", {"X Key": SECRET}, "'X Key'"),
        ("http://host/", {"Content-Length": "3"}, "content-length"),
        (f"http://me:{SECRET}@host/", {"authorization": SECRET}, "remove one of them"),
        ("http://host/", {"X-Key": f"a\n{SECRET}"}, "'X-Key' contains control characters"),
        ("http://host/", {"Authorization": f"Bearer “{SECRET}”"}, "'Authorization' contains characters that"),
        ("http://ho st/", {}, "white space in its host"),
    ],
)
def test_invalid_urls_and_headers_are_rejected_before_any_call(url: str, headers: dict[str, str], mistake: str) -> None:
    endpoint = Endpoint.model_validate({"headers": headers})
    found = find_endpoint_problem(url, endpoint.headers)
    assert found is not None and mistake in found and SECRET not in found
    with pytest.raises(UserError, match="tool 'search'"):
        EndpointClient("tool 'search'", url, endpoint, ToolFailed)


def test_a_url_is_shown_without_possible_secrets() -> None:
    assert redact_url("https://me:pw@host:8443/a/b?key=1#c") == "https://host:8443/a/b"
