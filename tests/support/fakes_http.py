"""A real HTTP server on localhost with a behavior chosen by the test, and a clock that advances only by sleeping."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from agent_rft.actors.runtime.timing import Timing
from agent_rft.spec.operator.operator_config import OperatorConfig

LOCAL = OperatorConfig(allowed_networks=["127.0.0.0/8"])
"""Allows clients to call the servers below."""


@dataclass(frozen=True, slots=True)
class Received:
    """One received request; `number` counts from 1."""

    number: int
    path: str
    headers: dict[str, str]
    body: Any
    raw: bytes
    transport: asyncio.Transport

    def drop(self) -> None:
        """Close the connection without a response."""
        self.transport.abort()


Behavior = Callable[[Received], Awaitable[web.StreamResponse]]


class FakeEndpoint:
    """`async with FakeEndpoint(behave) as server`: POSTs to `server.url` are answered by `behave`.

    `open_now` counts the requests whose connection is open, `most_open` is the highest it ever was.
    """

    def __init__(self, behave: Behavior) -> None:
        self._behave = behave
        self.received: list[Received] = []
        self.open_now = 0
        self.most_open = 0
        self.url = ""

    async def __aenter__(self) -> FakeEndpoint:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/{path:.*}", self._handle)
        # A handler is cancelled when its client disconnects, so that `open_now` counts open requests only.
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/run"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        assert isinstance(request.transport, asyncio.Transport)
        received = Received(
            len(self.received) + 1, request.path, dict(request.headers), json.loads(raw), raw, request.transport
        )
        self.received.append(received)
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        try:
            return await self._behave(received)
        finally:
            self.open_now -= 1


def says(body: Any, status: int = 200, **headers: str) -> Behavior:
    """A behavior that always gives the same answer; see `one_by_one`."""
    return one_by_one([(status, body)], **headers)


def one_by_one(answers: Sequence[tuple[int, Any]], **headers: str) -> Behavior:
    """A behavior that gives the answers in turn; the last one repeats.

    A body that is a string is sent unchanged, all others as JSON. `headers` are sent with statuses other than 200.
    """

    async def behave(request: Received) -> web.StreamResponse:
        status, body = answers[min(request.number, len(answers)) - 1]
        sent = {name.replace("_", "-"): value for name, value in headers.items()} if status != 200 else {}
        if isinstance(body, str):
            return web.Response(status=status, text=body, headers=sent)
        return web.json_response(body, status=status, headers=sent)

    return behave


async def hangs(request: Received) -> web.StreamResponse:
    """A behavior that never answers."""
    await asyncio.Event().wait()
    raise AssertionError


class Names(AbstractResolver):
    """Resolves to a given list of addresses per lookup; the last list repeats."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        addresses = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in addresses
        ]

    async def close(self) -> None:
        pass


def unused_port() -> int:
    """A port on which nothing listens, outside the range of ephemeral ports, which other tests' connections use."""
    while True:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.socket() as server:
            server.bind(("127.0.0.1", port))
            return port


@dataclass(slots=True)
class FakeTime:
    """A clock that advances only by sleeping, which takes no real time."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def timing(self, wall_clock: float = 0.0) -> Timing:
        return Timing(
            clock=lambda: self.now, wall_clock=lambda: wall_clock + self.now, sleep=self.sleep, jitter=lambda: 0.0
        )


class MovableLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock a test moves forward. Run it with `asyncio.Runner(loop_factory=MovableLoop)`."""

    def __init__(self) -> None:
        self._moved_s = 0.0
        super().__init__()

    def time(self) -> float:
        return super().time() + self._moved_s

    def move(self, seconds: float) -> None:
        """Let this much time pass at once; timers that are due then run."""
        self._moved_s += seconds

    def timing(self) -> Timing:
        """Timing on the clock of this loop."""
        return Timing(clock=self.time)


def in_movable_time(test: Callable[[MovableLoop], Coroutine[Any, Any, None]]) -> None:
    """Run `test` in a loop whose clock it can move."""
    with asyncio.Runner(loop_factory=MovableLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, MovableLoop)
        runner.run(test(loop))


async def until(holds: Callable[[], bool], within_s: float = 2.0) -> None:
    """Wait until `holds()` is true.

    Raises:
        AssertionError: it is not true within `within_s`.
    """
    pause_s = 0.005
    for _ in range(round(within_s / pause_s)):
        if holds():
            return
        await asyncio.sleep(pause_s)
    raise AssertionError(f"the condition was not true within {within_s:g} s")
