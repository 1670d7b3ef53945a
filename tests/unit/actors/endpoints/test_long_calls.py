"""Calls that take hours: they end well before their deadline, with an error at it, and their connection stays alive."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent_rft.actors.endpoints.client import EndpointClient
from agent_rft.actors.runtime.keep_alive import KEEP_ALIVE
from agent_rft.actors.runtime.timing import Timing
from agent_rft.errors import ToolFailed
from agent_rft.spec.endpoints import Endpoint
from tests.support.fakes_http import LOCAL, FakeEndpoint, MovableLoop, Received, hangs, in_movable_time, until

HOUR_S = 3600.0


def client_of(url: str, timing: Timing, **endpoint: Any) -> EndpointClient:
    spec = Endpoint.model_validate(endpoint)
    return EndpointClient("tool 'build'", url, spec, ToolFailed, timing, allowed_networks=LOCAL.allowed_networks)


def test_a_call_that_takes_five_hours_is_answered_by_one_request() -> None:
    async def test(loop: MovableLoop) -> None:
        built = asyncio.Event()

        async def builds(request: Received) -> web.Response:
            await built.wait()
            return web.json_response({"output": "ok"})

        async with FakeEndpoint(builds) as server:
            client = client_of(server.url, loop.timing(), timeout_s=6 * HOUR_S, attempt_timeout_s=5.5 * HOUR_S)
            call = asyncio.create_task(client.post({}, "call_1"))
            await until(lambda: server.open_now == 1)
            for _ in range(20):
                loop.move(HOUR_S / 4)
                await asyncio.sleep(0.001)
                assert not call.done()
            built.set()
            answer = await call
            await client.close()
        assert (answer.status, answer.retries, len(server.received)) == (200, 0, 1)
        assert answer.latency_s == pytest.approx(5 * HOUR_S, abs=60)

    in_movable_time(test)


def test_a_long_call_ends_at_its_own_deadline() -> None:
    async def test(loop: MovableLoop) -> None:
        async with FakeEndpoint(hangs) as server:
            client = client_of(server.url, loop.timing(), timeout_s=2 * HOUR_S)
            call = asyncio.create_task(client.post({}, "call_1"))
            await until(lambda: server.open_now == 1)
            loop.move(2 * HOUR_S - 60)
            await asyncio.sleep(0.01)
            assert not call.done()
            loop.move(61)
            with pytest.raises(ToolFailed, match=r"no answer by the deadline of 7200 s.*raise timeout_s"):
                await call
            await client.close()

    in_movable_time(test)


async def test_connections_to_an_endpoint_send_keep_alive_probes_while_it_works() -> None:
    async with FakeEndpoint(hangs) as server:
        client = client_of(server.url, Timing())
        call = asyncio.create_task(client.post({}, "call_1"))
        await until(lambda: server.open_now == 1)
        with _socket_at(server.received[0].transport.get_extra_info("peername")) as connection:
            options = {name: connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in KEEP_ALIVE}
            is_on = connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        call.cancel()
        await asyncio.wait([call])
        await client.close()
    assert is_on
    assert options == KEEP_ALIVE
    assert options["TCP_KEEPIDLE"] <= 60, "NAT gateways and load balancers drop entries that are idle for minutes"


def _socket_at(address: tuple[str, int]) -> socket.socket:
    """A duplicate of this process's socket with this local address."""
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_socket():
            found = socket.socket(fileno=os.dup(int(entry.name)))
            if found.getsockname() == address:
                return found
            found.close()
    raise AssertionError(f"no socket at {address}")
