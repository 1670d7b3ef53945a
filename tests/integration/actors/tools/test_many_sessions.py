"""Thousands of sessions of one book, over HTTP."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent_rft.actors.tools.session_journal import ToolSessionJournal
from agent_rft.errors import ToolFailed
from tests.support.fakes_http import FakeEndpoint, Received
from tests.unit.actors.tools.test_tool_sessions import ITEM, Book, Machines, book  # noqa: F401


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.nightly)])
async def test_thousands_of_sessions_are_opened_and_all_are_closed(
    book: Book,  # noqa: F811
    tmp_path: Path,
    count: int,
) -> None:
    received_bodies: list[dict[str, Any]] = []

    class Server(asyncio.Protocol):
        """A minimal HTTP server, so that the time measured is that of the book."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport, self.got = transport, b""

        def data_received(self, data: bytes) -> None:
            self.got += data
            if self.got.endswith(b"}"):
                received_bodies.append(json.loads(self.got.partition(b"\r\n\r\n")[2]))
                self.got = b""
                self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    sessions = book(url, tmp_path / "sessions.jsonl")
    await asyncio.gather(*(sessions.start(f"trace_{i}", {}) for i in range(count)))
    assert sessions.stats()["open"] == count
    for i in range(count // 2):
        sessions.end(f"trace_{i}", "graded")
    assert await sessions.close("job_stopped") == 0
    server.close()
    everyone = Counter(f"trace_{i}" for i in range(count))
    assert Counter(body["trace_id"] for body in received_bodies if body["type"] == "session_start") == everyone
    assert Counter(body["trace_id"] for body in received_bodies if body["type"] == "session_end") == everyone
    assert Counter(body.get("reason") for body in received_bodies) == {
        None: count,
        "graded": count // 2,
        "job_stopped": count // 2,
    }
    assert ToolSessionJournal(tmp_path / "sessions.jsonl").open_sessions == []


@pytest.mark.parametrize("seed", range(3))
async def test_each_start_that_the_server_received_is_ended_despite_failures_and_cancellations(
    book: Book,  # noqa: F811
    tmp_path: Path,
    seed: int,
) -> None:
    chance = random.Random(seed)

    async def faulty(request: Received) -> web.StreamResponse:
        what = chance.random()
        await asyncio.sleep(chance.random() * 0.01)
        if what < 0.05:
            request.drop()
        return web.json_response({}, status=500 if what < 0.2 else 503 if what < 0.3 else 404 if what < 0.35 else 200)

    async with FakeEndpoint(machines := Machines(faulty)) as server:
        sessions = book(server.url, tmp_path / "sessions.jsonl", max_open=50)
        opened = Counter[str]()

        async def rollout(trace_id: str) -> None:
            try:
                await sessions.start(trace_id, ITEM, f"engine-{chance.randrange(10)}")
                opened[trace_id] += 1
                await asyncio.sleep(chance.random() * 0.02)
                sessions.end(trace_id, "graded")
            except ToolFailed as failed:
                sessions.end(trace_id, failed.reason)

        rollouts = [asyncio.create_task(rollout(f"trace_{i}")) for i in range(1_000)]
        for one in rollouts:
            if chance.random() < 0.3:
                asyncio.get_running_loop().call_later(chance.random(), one.cancel)
        asyncio.get_running_loop().call_later(0.3, sessions.end_owner, "engine-3", "engine_failed")
        await asyncio.wait(rollouts)
        left = await sessions.close("job_stopped")
        if left:  # an end that failed four times while the book closed is sent by the next process
            left = await book(server.url, tmp_path / "sessions.jsonl").close("job_stopped")
    assert left == 0
    assert set(machines.starts) == set(machines.ends) and set(opened) <= set(machines.starts)
    assert len(opened) > 300
    assert machines.most_open <= 50
