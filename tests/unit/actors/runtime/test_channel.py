"""Calls over a connection between two sides of one event loop; of Ray, only what it hands over is a fake."""

from __future__ import annotations

import asyncio
import gc
import math
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from actors.runtime.channel import KEEP_ALIVE, LENGTH_BYTES, Address, Channel, Listener, Reachable, ray_encrypts
from tests.support.fakes_http import until
from trainer.errors import EndpointRefused, EngineFailed, ToolFailed

HOST = "127.0.0.1"


class Remote:
    """A method of an actor handle."""

    def __init__(self, method: Any) -> None:
        self.remote = method

    def options(self, **options: Any) -> Remote:
        return self


class FakeActor:
    """An actor handle as Ray gives one; `listener` answers, until another one takes its place."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.under_way = 0
        self.lookups = 0
        self.listeners: list[Listener] = []
        self.by_ray = 0
        self.reachable = True
        self.listener = self.starts_anew()
        self.address, self.lifeline = Remote(self._address), Remote(self._live)
        self.call, self.pulse = Remote(self._call), Remote(lambda: self._give([]))

    def starts_anew(self) -> Listener:
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.listener = Listener({"echo": self._echo, "hangs": self._hangs, "fails": self._fails, "odd": self._odd})
        self.listeners.append(self.listener)
        return self.listener

    async def _address(self) -> Address | None:
        self.lookups += 1
        address = await self.listener.address(HOST)
        return address if self.reachable else Address(HOST, 1, address.secret)

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
        self.under_way += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise

    async def _fails(self) -> None:
        raise EndpointRefused("tool 'x' refused us", endpoint="tool 'x'", kind="refused", why=ValueError("odd"))

    async def _odd(self) -> Any:
        return object()


@pytest.fixture
async def actor() -> AsyncIterator[FakeActor]:
    actor = FakeActor()
    yield actor
    for listener in actor.listeners:
        await listener.close()


@pytest.fixture
async def channel(actor: FakeActor) -> Channel:
    return Channel(actor, "the tool dispatcher", ToolFailed)


async def test_whatever_json_holds_crosses_however_large(channel: Channel) -> None:
    row = {"text": "\ud800 é\x00", "n": 2**70, "none": None, "deep": [[[{}]]], "inf": math.inf}
    assert await channel.call("echo", row, True) == [row, True]
    large = "x" * 5_000_000
    assert await channel.call("echo", large) == [large]


async def test_many_calls_are_under_way_and_each_has_its_own_answer(channel: Channel, actor: FakeActor) -> None:
    answers = await asyncio.gather(*(channel.call("echo", (500 - i) / 10_000, i) for i in range(500)))
    assert [answer[1] for answer in answers] == list(range(500))
    assert (actor.lookups, actor.by_ray) == (1, 0)


async def test_errors_come_back_as_what_they_were_and_bugs_with_their_traceback(channel: Channel) -> None:
    with pytest.raises(EndpointRefused, match="tool 'x' refused us") as refused:
        await channel.call("fails")
    assert refused.value.details == {"endpoint": "tool 'x'", "kind": "refused", "why": "odd"}
    with pytest.raises(RuntimeError, match="not JSON serializable"):
        await channel.call("odd")
    with pytest.raises(RuntimeError, match="KeyError: 'unknown'"):
        await channel.call("unknown")
    with pytest.raises(TypeError, match="not JSON serializable"):
        await channel.call("echo", object())
    assert await channel.call("echo", 1) == [1]


async def test_a_call_that_is_given_up_is_cancelled_in_the_actor(channel: Channel, actor: FakeActor) -> None:
    given_up = asyncio.create_task(channel.call("hangs", "first"))
    stays = asyncio.create_task(channel.call("hangs", "second"))
    await until(lambda: actor.under_way == 2)
    given_up.cancel()
    await until(lambda: actor.cancelled == ["first"])
    assert not stays.done()
    stays.cancel()


async def test_calls_of_a_caller_that_is_gone_are_cancelled(channel: Channel, actor: FakeActor) -> None:
    waits = asyncio.create_task(channel.call("hangs", "orphan"))
    await until(lambda: actor.under_way == 1)
    assert channel._connection is not None
    channel._connection._writer.transport.abort()
    await until(lambda: actor.cancelled == ["orphan"])
    with pytest.raises(ToolFailed):
        await waits


@pytest.mark.parametrize("error", [ActorDiedError(), ActorUnavailableError("it stands still", b"0" * 16)])
async def test_an_actor_that_is_lost_breaks_its_calls_and_the_next_go_to_the_one_after_it(
    channel: Channel, actor: FakeActor, error: Exception
) -> None:
    waits = [asyncio.create_task(channel.call("hangs", "x")) for _ in range(3)]
    await until(lambda: actor.under_way == 3)
    died = actor.died
    actor.starts_anew()
    died.set_exception(error)
    for call in waits:
        with pytest.raises(ToolFailed, match="the process of the tool dispatcher was lost during a call") as lost:
            await call
        assert lost.value.details["kind"] == ("lost" if isinstance(error, ActorDiedError) else "unreachable")
    assert await channel.call("echo", 1) == [1]
    assert actor.lookups == 2, "three that lost their connection look for one new one"


@pytest.mark.parametrize("reachable", [True, False])
async def test_that_an_actor_is_gone_for_good_is_said_once_ray_knows(actor: FakeActor, reachable: bool) -> None:
    actor.reachable = reachable
    channel = Channel(actor, "engine-0", EngineFailed)
    waits = asyncio.create_task(channel.call("hangs", "x"))
    await until(lambda: actor.under_way == 1)
    asked, knows = asyncio.Event(), asyncio.Event()

    async def nobody() -> None:
        asked.set()
        await knows.wait()
        raise ActorDiedError()

    actor.pulse = actor.address = Remote(nobody)
    if channel._connection is None:
        actor.died.set_exception(ActorDiedError())
    else:
        channel._connection._writer.transport.abort()  # as at the end of its node, before Ray hears of that
    await asked.wait()
    assert not waits.done()
    knows.set()
    with pytest.raises(EngineFailed, match="the process of engine-0 was lost during a call") as lost:
        await waits
    assert lost.value.details["kind"] == "lost"


@pytest.mark.parametrize("reachable", [True, False])
async def test_a_call_that_takes_too_long_is_cancelled(actor: FakeActor, reachable: bool) -> None:
    actor.reachable = reachable
    channel = Channel(actor, "engine-0", EngineFailed, 0.05)
    with pytest.raises(EngineFailed, match=r"engine-0 did not answer within 0\.05 s"):
        await channel.call("hangs", "x")
    await until(lambda: actor.cancelled == ["x"])
    assert list(await channel.call("echo", 1)) == [1], "for the other calls it is as good as before"


async def test_a_connection_that_fails_when_all_callers_have_left_is_no_loose_end(
    channel: Channel, actor: FakeActor
) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    asked, opens = asyncio.Event(), asyncio.Event()

    async def address() -> None:
        asked.set()
        await opens.wait()
        raise ActorDiedError()

    actor.address = Remote(address)
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
    assert not told


async def test_a_connection_that_is_silent_for_minutes_is_kept_alive(channel: Channel, actor: FakeActor) -> None:
    await channel.call("echo", 1)
    assert channel._connection is not None
    sock = channel._connection._writer.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEP_ALIVE["TCP_KEEPIDLE"]


async def test_an_actor_without_a_free_port_is_called_by_ray() -> None:
    callee = Reachable()
    callee._serve_methods({})
    callee._listener._server = asyncio.get_running_loop().create_future()
    callee._listener._server.set_exception(OSError("no port is free"))
    assert await callee.address() is None


async def test_an_actor_that_listens_elsewhere_by_now_is_asked_again(channel: Channel, actor: FakeActor) -> None:
    old = await actor.listener.address(HOST)
    told = [Address(HOST, old.port, "0" * len(old.secret)), old]  # of one that died: its secret opens nothing
    actor.address = Remote(lambda: actor._give(told.pop(0)))
    assert await channel.call("echo", 1) == [1]
    assert actor.by_ray == 0 and not told


async def test_where_no_connection_leads_calls_go_by_ray(channel: Channel, actor: FakeActor) -> None:
    actor.reachable = False
    assert list(await asyncio.gather(channel.call("echo", 1), channel.call("echo", 2))) == [(1,), (2,)]
    assert actor.by_ray == 2
    assert actor.lookups == 2, "it was tried twice, and then no more"


async def test_where_the_actor_has_no_address_calls_go_by_ray_and_errors_cross_as_values(actor: FakeActor) -> None:
    callee = Reachable()
    callee._serve_methods(actor.listener.methods)
    actor.address, actor.call = Remote(lambda: actor._give(None)), Remote(callee.call)
    channel = Channel(actor, "the tool dispatcher", ToolFailed)
    assert await channel.call("echo", 1) == (1,)
    with pytest.raises(EndpointRefused, match="tool 'x' refused us"):
        await channel.call("fails")


def test_it_is_known_whether_ray_encrypts() -> None:
    assert ray_encrypts({"RAY_USE_TLS": "1"})
    assert not ray_encrypts({"RAY_USE_TLS": "0"}) and not ray_encrypts({})


@pytest.mark.parametrize("said", [b"", b"short", b"0" * 64])
async def test_who_does_not_know_the_secret_is_not_listened_to(channel: Channel, actor: FakeActor, said: bytes) -> None:
    address = await actor.listener.address(HOST)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    frame = b'[0,"hangs",["intruder"]]'
    writer.write(said + len(frame).to_bytes(LENGTH_BYTES) + frame)
    if len(said) < len(address.secret):
        writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    assert actor.under_way == 0
    assert await channel.call("echo", 1) == [1]
