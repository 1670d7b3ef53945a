"""Ten thousand sessions of one book."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

from actors.session_journal import SessionJournal
from tests.unit.actors.test_sessions import Book, book  # noqa: F401


async def test_ten_thousand_sessions_are_opened_and_all_are_closed(
    book: Book,  # noqa: F811
    tmp_path: Path,
) -> None:
    told: list[dict[str, Any]] = []

    class Server(asyncio.Protocol):
        """As little HTTP as will do: the time is the book's."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport, self.got = transport, b""

        def data_received(self, data: bytes) -> None:
            self.got += data
            if self.got.endswith(b"}"):
                told.append(json.loads(self.got.partition(b"\r\n\r\n")[2]))
                self.got = b""
                self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    sessions = book(url, tmp_path / "sessions.jsonl")
    await asyncio.gather(*(sessions.start(f"trace_{i}", {}) for i in range(10_000)))
    assert sessions.stats()["open"] == 10_000
    for i in range(5_000):
        sessions.end(f"trace_{i}", "graded")
    assert await sessions.close("job_stopped") == 0
    server.close()
    everyone = Counter(f"trace_{i}" for i in range(10_000))
    assert Counter(body["trace_id"] for body in told if body["type"] == "session_start") == everyone
    assert Counter(body["trace_id"] for body in told if body["type"] == "session_end") == everyone
    assert Counter(body.get("reason") for body in told) == {None: 10_000, "graded": 5_000, "job_stopped": 5_000}
    assert SessionJournal(tmp_path / "sessions.jsonl").open == []
