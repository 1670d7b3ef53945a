"""Calls to an actor over a connection of its own, for those that each rollout or each of its turns needs.

A Ray call costs 2.3 ms of processor time, caller and callee together, a call here 0.3 (`benchmarks.channel`). Ray keeps
what it is good at: it says where the actor listens and hands over the secret that opens the address; and one call that
never ends tells that the actor or its node is gone, which a connection alone would find out late. Where no connection
can be made (a firewall between nodes), or where Ray encrypts its own, each call is a Ray call.

Frames are JSON behind four bytes of length: `[number, method, arguments]`, back `[number, value]` or `[number, null,
error, message, details]`; `[number]` gives a call up. Nothing is read of whoever does not begin with the secret.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import logging
import os
import secrets
import socket
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from actors.runtime.calls import DEADLINE_S, LOST, RESTART_S, ask, ask_helper, kind_of, outcome_of, result_of
from trainer import errors
from trainer.errors import Discard, RftError

LOG = logging.getLogger(__name__)
CONNECT_S = 5.0
"""To connect, and for the secret to come."""
CONNECT_TRIES = 2
"""An actor may die between saying where it listens and hearing from us; another one listens elsewhere."""
WELCOME = b"."
"""What answers the secret: whoever else listens there by now does not say it."""
KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 6}
"""By Linux's names: seconds of silence until the other side is asked, seconds between asking; how often in vain."""
LENGTH_BYTES = 4
ChannelMethod = Callable[..., Awaitable[Any]]
"""Takes and gives what JSON can hold; raises an RftError for what is wrong on purpose."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where an actor listens, and what whoever comes in has to say first."""

    host: str
    port: int
    secret: str = field(repr=False)


def ray_encrypts(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether what Ray carries is secret on the wire, as nothing is that crosses here."""
    return environment.get("RAY_USE_TLS") == "1"


# -- in the actor ------------------------------------------------------------------------------------------------------


class Reachable:
    """What an actor inherits. It calls `_reach_by` with its methods by their names."""

    def _reach_by(self, methods: Mapping[str, ChannelMethod]) -> None:
        self._listener = Listener(methods)

    async def address(self) -> Address | None:
        """Where it listens; None where it cannot, or must not."""
        if ray_encrypts():
            return None
        try:
            return await self._listener.address(ray.util.get_node_ip_address())
        except OSError as error:
            LOG.warning("no port to listen at, so calls come by Ray: %r", error)
            return None

    async def lifeline(self) -> None:
        """Ends with the actor."""
        await asyncio.Event().wait()

    async def call(self, method: str, arguments: Sequence[Any]) -> Any:
        """For whom no connection leads here."""
        return await outcome_of(self._listener.methods[method](*arguments))


class Listener:
    """Answers calls that come over connections. Calls of a connection that ends are cancelled."""

    def __init__(self, methods: Mapping[str, ChannelMethod]) -> None:
        self.methods = methods
        self._secret = secrets.token_hex(32)
        self._server: asyncio.Future[asyncio.Server] | None = None

    async def address(self, host: str) -> Address:
        """Listen at a free port of `host`, if it does not yet."""
        if self._server is None:
            self._server = asyncio.ensure_future(asyncio.start_server(self._serve, host, 0))
        server = await asyncio.shield(self._server)
        return Address(host, server.sockets[0].getsockname()[1], self._secret)

    async def close(self) -> None:
        """Let nobody else in."""
        if self._server is not None:
            (await self._server).close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way: dict[int, asyncio.Task[None]] = {}
        _keep_alive(writer)
        try:
            async with asyncio.timeout(CONNECT_S):
                said = await reader.readexactly(len(self._secret))
            if not hmac.compare_digest(said, self._secret.encode()):
                return
            writer.write(WELCOME)
            while True:
                number, *call = await _read(reader)
                if call:
                    task = under_way[number] = asyncio.create_task(self._answer(writer, number, *call))
                    task.add_done_callback(lambda _, number=number: under_way.pop(number))  # type: ignore[misc]
                elif number in under_way:
                    under_way[number].cancel()
        except (OSError, EOFError):  # TimeoutError is an OSError
            pass
        finally:
            for task in under_way.values():
                task.cancel()
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, number: int, method: str, arguments: list[Any]) -> None:
        try:
            answer = _frame([number, await self.methods[method](*arguments)])
        except RftError as error:
            answer = _frame([number, None, type(error).__name__, error.message, error.details], default=str)
        except Exception:  # noqa: BLE001 - a bug, of which the caller has to hear
            answer = _frame([number, None, "", traceback.format_exc(), {}])
        writer.write(answer)


# -- in the caller -----------------------------------------------------------------------------------------------------


class Channel:
    """To one actor, from one event loop; connected by the first call. `what` names the actor and `lost` is raised where
    it died or took longer than `deadline_s` for a call: once Ray knows of the death and, if it starts such actors anew,
    once it answers again.
    """

    def __init__(self, actor: Any, what: str, lost: type[Discard], deadline_s: float = DEADLINE_S) -> None:
        self._actor = actor
        self._what = what
        self._lost = lost
        self._deadline_s = deadline_s
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._by_ray = False

    async def call(self, method: str, *arguments: Any) -> Any:
        """What the actor's method gave. Cancelled or late, it cancels the call.

        Raises:
            RftError: the one that the method raised.
            Discard: `lost`, where the actor died or did not answer in time.
        """
        await self.connect()
        connection = self._connection
        if connection is None:
            ref = self._actor.call.remote(method, arguments)
            return await ask_helper(self._actor, ref, self._what, self._lost, self._deadline_s)
        try:
            async with asyncio.timeout(self._deadline_s) as deadline:
                return await connection.call(method, arguments)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise self._lost(f"{self._what} did not answer within {self._deadline_s:g} s", kind="late") from None
        except _Broken as broken:
            with suppress(Discard):
                await self.connect()
            why = f"the process of {self._what} was lost during a call ({broken})"
            raise self._lost(why, kind=broken.kind) from None

    async def connect(self) -> None:
        """See that there is a connection, or that there cannot be one.

        Raises:
            Discard: `lost`, where the actor does not answer.
        """
        if self._by_ray or (self._connection is not None and self._connection.broken is None):
            return
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect_now())
            self._connecting.add_done_callback(_heard)  # who waited for it may be gone
        await asyncio.shield(self._connecting)

    async def _connect_now(self) -> None:
        for _ in range(CONNECT_TRIES):
            ref = self._actor.address.options(max_task_retries=-1).remote()
            address: Address | None = await ask(ref, self._what, self._lost, RESTART_S)
            if address is None:
                break
            try:
                async with asyncio.timeout(CONNECT_S):
                    reader, writer = await _enter(address)
            except (OSError, EOFError) as error:
                LOG.warning("no connection to %s at %s:%d: %r", self._what, address.host, address.port, error)
                continue
            self._connection = _Connection(reader, writer, self._actor.lifeline.remote())
            return
        self._connection, self._by_ray = None, True


async def _enter(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises:
    OSError, EOFError: nobody listens there, or not whom we look for.
    """
    reader, writer = await asyncio.open_connection(address.host, address.port)
    _keep_alive(writer)
    try:
        writer.write(address.secret.encode())
        await reader.readexactly(len(WELCOME))
    except BaseException:  # cancelled too: no socket is left behind
        writer.close()
        raise
    return reader, writer


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """Between two bursts nothing is said for minutes, and a firewall forgets who is silent."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEP_ALIVE.items():
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _heard(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


class _Broken(Exception):
    """The connection is gone, and the answers to what was asked over it. `kind` as in `outcome`."""

    def __init__(self, why: str, kind: str) -> None:
        super().__init__(why)
        self.kind = kind


class _Connection:
    """`lifeline` is the object reference of a call that ends with the actor only."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lifeline: Any) -> None:
        self.broken: _Broken | None = None
        self._writer = writer
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks = [asyncio.create_task(self._read(reader)), asyncio.create_task(self._watch(lifeline))]

    async def call(self, method: str, arguments: Sequence[Any]) -> Any:
        if self.broken is not None:
            raise self.broken
        number = next(self._numbers)
        self._writer.write(_frame([number, method, arguments]))
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            return await answer
        except asyncio.CancelledError:
            if self.broken is None:
                self._writer.write(_frame([number]))
            raise
        finally:
            self._waiting.pop(number, None)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                number, value, *error = await _read(reader)
                answer = self._waiting.get(number)
                if answer is None or answer.done():
                    continue
                if error:
                    answer.set_exception(_error(*error))
                else:
                    answer.set_result(value)
        except (OSError, EOFError):
            pass
        finally:
            self._break("its connection ended", LOST)

    async def _watch(self, lifeline: Any) -> None:
        try:
            await result_of(lifeline)
        except RayError as error:
            self._break(type(error).__name__, kind_of(error))

    def _break(self, why: str, kind: str) -> None:
        if self.broken is not None:
            return
        self.broken = _Broken(why, kind)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(_Broken(why, kind))
        self._writer.close()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()


# -- frames ------------------------------------------------------------------------------------------------------------


def _frame(content: Sequence[Any], default: Callable[[Any], str] | None = None) -> bytes:
    body = json.dumps(content, separators=(",", ":"), default=default).encode()
    return len(body).to_bytes(LENGTH_BYTES) + body


async def _read(reader: asyncio.StreamReader) -> list[Any]:
    """Raises:
    EOFError: there is none any more (asyncio.IncompleteReadError is one).
    """
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
    content: list[Any] = json.loads(await reader.readexactly(length))
    return content


def _error(name: str, message: str, details: dict[str, Any]) -> Exception:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, RftError):
        return kind(message, **details)
    return RuntimeError(message)
