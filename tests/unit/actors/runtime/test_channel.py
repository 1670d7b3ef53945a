"""Calls over a real connection within one event loop; only the Ray actor handle is a fake."""

from __future__ import annotations

import asyncio
import gc
import math
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from agent_rft.actors.runtime.channel import (
    LENGTH_BYTES,
    ChannelActor,
    ChannelAddress,
    ChannelClient,
    ChannelServer,
    ray_encrypts,
)
from agent_rft.actors.runtime.keep_alive import KEEP_ALIVE
from agent_rft.errors import EndpointRefused, EngineFailed, ToolFailed
from tests.support.fakes_http import until

HOST = "127.0.0.1"


class Remote:
    """A method of an actor handle."""

    def __init__(self, method: Any) -> None:
        self.remote = method

    def options(self, **options: Any) -> Remote:
        return self


class FakeActor:
    """A fake Ray actor handle; `listener` answers, until `restart` replaces it."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.running = 0
        self.lookups = 0
        self.listeners: list[ChannelServer] = []
        self.by_ray = 0
        self.reachable = True
        self.listener = self.restart()
        self.get_channel_address, self.lifeline = Remote(self._address), Remote(self._live)
        self.call, self.heartbeat = Remote(self._call), Remote(lambda: self._give([]))

    def restart(self) -> ChannelServer:
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.listener = ChannelServer(
            {"echo": self._echo, "hangs": self._hangs, "fails": self._fails, "odd": self._odd}
        )
        self.listeners.append(self.listener)
        return self.listener

    async def _address(self) -> ChannelAddress | None:
        self.lookups += 1
        address = await self.listener.start(HOST)
        return address if self.reachable else ChannelAddress(HOST, 1, address.secret)

    async def _live(self) -> None:
        await asyncio.shield(self.died)

    async def _call(self, method: str, arguments: Any) -> Any:
        self.by_ray += 1
        answer = asyncio.ensure_future(self.listener.methods[method](*arguments))
        try:
            await asyncio.wait({answer, self.died}, return_when=asyncio.FIRST_COMPLETED)
            return self.died.result() if self.died.done() else answer.result()
        finally:
            answer.cancel()

    async def _give(self, value: Any) -> Any:
        return value

    async def _echo(self, *values: Any) -> Any:
        await asyncio.sleep(values[0] if values and isinstance(values[0], float) else 0)
        return values

    async def _hangs(self, name: str) -> None:
        self.running += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise

    async def _fails(self) -> None:
        raise EndpointRefused("tool 'x' said no", endpoint="tool 'x'", kind="refused", why=ValueError("odd"))

    async def _odd(self) -> Any:
        return object()


@pytest.fixture
async def actor() -> AsyncIterator[FakeActor]:
    actor = FakeActor()
    yield actor
    for listener in actor.listeners:
        await listener.close()


@pytest.fixture
async def channel(actor: FakeActor) -> ChannelClient:
    return ChannelClient(actor, "the tool dispatcher", ToolFailed)


async def test_any_json_value_crosses_whatever_its_size(channel: ChannelClient) -> None:
    row = {"text": "\ud800 é\x00", "n": 2**70, "none": None, "deep": [[[{}]]], "inf": math.inf}
    assert await channel.call("echo", row, True) == [row, True]
    large = "x" * 5_000_000
    assert await channel.call("echo", large) == [large]


async def test_concurrent_calls_each_get_their_own_answer(channel: ChannelClient, actor: FakeActor) -> None:
    answers = await asyncio.gather(*(channel.call("echo", (500 - i) / 10_000, i) for i in range(500)))
    assert [answer[1] for answer in answers] == list(range(500))
    assert (actor.lookups, actor.by_ray) == (1, 0)


async def test_errors_come_back_unchanged_and_bugs_with_their_traceback(channel: ChannelClient) -> None:
    with pytest.raises(EndpointRefused, match="tool 'x' said no") as refused:
        await channel.call("fails")
    assert refused.value.details == {"endpoint": "tool 'x'", "kind": "refused", "why": "odd"}
    with pytest.raises(RuntimeError, match="not JSON serializable"):
        await channel.call("odd")
    with pytest.raises(RuntimeError, match="KeyError: 'unknown'"):
        await channel.call("unknown")
    with pytest.raises(TypeError, match="not JSON serializable"):
        await channel.call("echo", object())
    assert await channel.call("echo", 1) == [1]


async def test_cancelling_a_call_cancels_it_in_the_actor(channel: ChannelClient, actor: FakeActor) -> None:
    cancelled = asyncio.create_task(channel.call("hangs", "first"))
    other = asyncio.create_task(channel.call("hangs", "second"))
    await until(lambda: actor.running == 2)
    cancelled.cancel()
    await until(lambda: actor.cancelled == ["first"])
    assert not other.done()
    other.cancel()


async def test_calls_of_a_caller_that_is_gone_are_cancelled(channel: ChannelClient, actor: FakeActor) -> None:
    waits = asyncio.create_task(channel.call("hangs", "orphan"))
    await until(lambda: actor.running == 1)
    assert channel._connection is not None
    channel._connection._writer.transport.abort()
    await until(lambda: actor.cancelled == ["orphan"])
    with pytest.raises(ToolFailed):
        await waits


@pytest.mark.parametrize("error", [ActorDiedError(), ActorUnavailableError("it hangs", b"0" * 16)])
async def test_a_lost_actor_fails_its_calls_and_later_calls_go_to_its_replacement(
    channel: ChannelClient, actor: FakeActor, error: Exception
) -> None:
    waits = [asyncio.create_task(channel.call("hangs", "x")) for _ in range(3)]
    await until(lambda: actor.running == 3)
    died = actor.died
    actor.restart()
    died.set_exception(error)
    for call in waits:
        with pytest.raises(ToolFailed, match="the process of the tool dispatcher was lost during a call") as lost:
            await call
        assert lost.value.details["kind"] == ("lost" if isinstance(error, ActorDiedError) else "unreachable")
    assert await channel.call("echo", 1) == [1]
    assert actor.lookups == 2, "three calls that lost their connection share one new one"


@pytest.mark.parametrize("reachable", [True, False])
async def test_a_permanent_death_is_raised_once_ray_knows_of_it(actor: FakeActor, reachable: bool) -> None:
    actor.reachable = reachable
    channel = ChannelClient(actor, "engine-0", EngineFailed)
    waits = asyncio.create_task(channel.call("hangs", "x"))
    await until(lambda: actor.running == 1)
    asked, knows = asyncio.Event(), asyncio.Event()

    async def nobody() -> None:
        asked.set()
        await knows.wait()
        raise ActorDiedError()

    actor.heartbeat = actor.get_channel_address = Remote(nobody)
    if channel._connection is None:
        actor.died.set_exception(ActorDiedError())
    else:
        channel._connection._writer.transport.abort()  # as when its node dies, before Ray notices
    await asked.wait()
    assert not waits.done()
    knows.set()
    with pytest.raises(EngineFailed, match="the process of engine-0 was lost during a call") as lost:
        await waits
    assert lost.value.details["kind"] == "lost"


@pytest.mark.parametrize("reachable", [True, False])
async def test_a_call_that_takes_too_long_is_cancelled(actor: FakeActor, reachable: bool) -> None:
    actor.reachable = reachable
    channel = ChannelClient(actor, "engine-0", EngineFailed, 0.05)
    with pytest.raises(EngineFailed, match=r"engine-0 did not answer within 0\.05 s"):
        await channel.call("hangs", "x")
    await until(lambda: actor.cancelled == ["x"])
    assert list(await channel.call("echo", 1)) == [1], "other calls still work"


async def test_a_failed_connection_without_waiting_callers_is_not_reported_by_asyncio(
    channel: ChannelClient, actor: FakeActor
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    asked, opens = asyncio.Event(), asyncio.Event()

    async def address() -> None:
        asked.set()
        await opens.wait()
        raise ActorDiedError()

    actor.get_channel_address = Remote(address)
    call = asyncio.create_task(channel.call("echo", 1))
    await asked.wait()
    call.cancel()
    await asyncio.wait([call])
    opens.set()
    connecting, channel._connecting = channel._connecting, None
    assert connecting is not None
    await asyncio.wait([connecting])
    del connecting
    gc.collect()
    assert not reported


async def test_an_idle_connection_is_kept_alive(channel: ChannelClient, actor: FakeActor) -> None:
    await channel.call("echo", 1)
    assert channel._connection is not None
    sock = channel._connection._writer.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEP_ALIVE["TCP_KEEPIDLE"]


async def test_an_actor_without_a_free_port_has_no_address() -> None:
    callee = ChannelActor()
    callee._serve_methods({})
    callee._listener._server = asyncio.get_running_loop().create_future()
    callee._listener._server.set_exception(OSError("no port is free"))
    assert await callee.get_channel_address() is None


async def test_an_actor_whose_address_has_changed_is_looked_up_again(channel: ChannelClient, actor: FakeActor) -> None:
    old = await actor.listener.start(HOST)
    addresses = [ChannelAddress(HOST, old.port, "0" * len(old.secret)), old]  # of a dead actor: its secret is rejected
    actor.get_channel_address = Remote(lambda: actor._give(addresses.pop(0)))
    assert await channel.call("echo", 1) == [1]
    assert actor.by_ray == 0 and not addresses


async def test_without_a_connection_calls_go_through_ray(channel: ChannelClient, actor: FakeActor) -> None:
    actor.reachable = False
    assert list(await asyncio.gather(channel.call("echo", 1), channel.call("echo", 2))) == [(1,), (2,)]
    assert actor.by_ray == 2
    assert actor.lookups == 2, "it connects at most twice"


async def test_without_an_address_calls_go_through_ray_and_errors_cross_as_values(actor: FakeActor) -> None:
    callee = ChannelActor()
    callee._serve_methods(actor.listener.methods)
    actor.get_channel_address, actor.call = Remote(lambda: actor._give(None)), Remote(callee.call)
    channel = ChannelClient(actor, "the tool dispatcher", ToolFailed)
    assert await channel.call("echo", 1) == (1,)
    with pytest.raises(EndpointRefused, match="tool 'x' said no"):
        await channel.call("fails")


def test_ray_encrypts_is_read_from_the_environment() -> None:
    assert ray_encrypts({"RAY_USE_TLS": "1"})
    assert not ray_encrypts({"RAY_USE_TLS": "0"}) and not ray_encrypts({})


@pytest.mark.parametrize("secret", [b"", b"short", b"0" * 64])
async def test_a_client_without_the_secret_is_rejected(channel: ChannelClient, actor: FakeActor, secret: bytes) -> None:
    address = await actor.listener.start(HOST)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    frame = b'[0,"hangs",["intruder"]]'
    writer.write(secret + len(frame).to_bytes(LENGTH_BYTES) + frame)
    if len(secret) < len(address.secret):
        writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    assert actor.running == 0
    assert await channel.call("echo", 1) == [1]
