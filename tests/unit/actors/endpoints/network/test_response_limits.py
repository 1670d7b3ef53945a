"""Limits on the bytes of a response: what exceeds them is aborted, and what servers send in earnest is read."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from aiohttp import web

from agent_rft.actors.endpoints.client import EndpointClient
from agent_rft.actors.endpoints.network.response_limits import (
    MAX_BODY_BYTES,
    MAX_FRAMING_BYTES,
    MIN_BYTES_PER_WINDOW,
    RATE_WINDOW_S,
)
from agent_rft.errors import ToolFailed
from agent_rft.spec.endpoints import Endpoint
from tests.support.fakes_http import LOCAL, FakeEndpoint, MovableLoop, Received, in_movable_time
from tests.support.hostile_endpoint import hostile_endpoint, with_length
from tests.unit.actors.conftest import Connect

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY = b'{"output": "a"}'
END = b"f\r\n%b\r\n0\r\n\r\n" % BODY
params = pytest.mark.parametrize


@params(
    "answer",
    [
        [b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" * 500, with_length(BODY)],
        [b"HTTP/1.1 200 OK\r\n" + b"".join(b"a%d: %b\r\n" % (i, b"b" * 500) for i in range(100)) + CHUNKED[17:] + END],
        [CHUNKED, b"1\r\n \r\n" * 10_000, END],
        [CHUNKED, b"1;a=b\r\n \r\n" * 5_000, END[:-2], b"trailer: a\r\n\r\n"],
        [CHUNKED, *[b"1\r\n \r\n"] * 5_000, END],
        [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 15\r\n\r\n", BODY],
    ],
    ids=["interim responses", "headers", "small chunks", "extensions and a trailer", "segments", "a length"],
)
async def test_unusual_responses_within_the_limits_are_read(connect: Connect, answer: list[bytes]) -> None:
    with hostile_endpoint({"": lambda: answer}) as url:
        client = connect(url)
        for _ in range(3):  # each response of a connection is counted separately
            assert (await client.post({}, "call_1")).json() == {"output": "a"}


@params("compressed", [False, True])
async def test_large_bodies_are_read(connect: Connect, compressed: bool) -> None:
    body = json.dumps("ab" * (MAX_BODY_BYTES // 2 - 10)).encode()

    async def behave(request: Received) -> web.StreamResponse:
        if compressed:
            return web.Response(body=gzip.compress(body), headers={"Content-Encoding": "gzip"})
        return web.Response(body=body)

    async with FakeEndpoint(behave) as server:
        answer = await connect(server.url).post({}, "call_1")
    assert answer.body == body and answer.json() == json.loads(body)


async def test_a_response_that_exceeds_a_limit_fails_the_call_without_a_retry(connect: Connect) -> None:
    calls = 0

    def answer() -> list[bytes]:
        nonlocal calls
        calls += 1
        return [CHUNKED, b"1;a=b\r\n \r\n" * MAX_FRAMING_BYTES]

    with hostile_endpoint({"": answer}) as url:
        client = connect(url)
        with pytest.raises(ToolFailed, match=r"the response was aborted: it has more than 65,536 bytes in addition"):
            await client.post({}, "call_1")
    assert (calls, client.stats()["errors"], client.stats()["in_flight"]) == (1, {"response_limit": 1}, 0)


# -- the minimum rate --------------------------------------------------------------------------------------------------


def drip(num_bytes: int, windows: int = 5, silent_s: float = 0.0) -> str:
    """Call an endpoint that is silent, then sends headers, `num_bytes` per window of the rate, and a tool's output.

    Returns the output, or the message of the error.
    """
    outcome = ""

    async def test(loop: MovableLoop) -> None:
        nonlocal outcome
        asked, go_on = asyncio.Event(), asyncio.Semaphore(0)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"{}")
            asked.set()
            await go_on.acquire()
            writer.write(CHUNKED)
            for _ in range(windows):
                writer.write(b"%x\r\n%b\r\n" % (num_bytes, b" " * num_bytes))
                await go_on.acquire()
            writer.write(END)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            spec = Endpoint(timeout_s=7_200.0, max_retries=0)
            networks = LOCAL.allowed_networks
            client = EndpointClient("tool 't'", url, spec, ToolFailed, loop.timing(), allowed_networks=networks)
            call = asyncio.create_task(client.post({}, "call_1"))
            await asked.wait()
            loop.move(silent_s)
            await asyncio.sleep(0.01)
            assert not call.done(), "a call may be silent until its deadline"
            while not call.done():
                go_on.release()
                await asyncio.sleep(0.05)
                loop.move(RATE_WINDOW_S + 1)
                await asyncio.sleep(0.05)
            try:
                outcome = (await call).json()["output"]
            except ToolFailed as error:
                outcome = str(error)
            for _ in range(windows + 1):
                go_on.release()
            await client.close()

    in_movable_time(test)
    return outcome


def test_a_call_may_be_silent_and_its_answer_slow() -> None:
    assert drip(MIN_BYTES_PER_WINDOW, silent_s=3_600.0) == "a"


def test_an_answer_that_drips_is_aborted() -> None:
    assert "the response was aborted: less than 300 bytes of it arrived within 60 s" in drip(1)
