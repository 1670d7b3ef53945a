"""Direct TCP connections to actors, for the calls that are made in each rollout or conversation turn.

A Ray call costs 2.3 ms of CPU time in caller and callee together, and a channel call 0.3 ms (`benchmarks.channel`). Ray
is still used to find actors and to detect their failure. One Ray call returns the actor's address and secret. Another
Ray call, the lifeline, never returns. It fails as soon as the actor or its node dies, which TCP would detect late. If
the connection fails, for example because of a firewall between nodes, or if Ray uses TLS, all calls are Ray calls.

Each message is a frame: a four-byte big-endian length, followed by JSON of this length:

- request: `[number, method, arguments]`
- response: `[number, value]` or `[number, null, error, message, details]`
- cancellation of a call: `[number]`

The client must send the secret before its first frame, or the server closes the connection.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import logging
import os
import secrets
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from agent_rft import errors
from agent_rft.actors.runtime.actor_calls import (
    DEADLINE_S,
    LOST,
    RESTART_S,
    await_result,
    call_actor,
    call_restartable_actor,
    classify_ray_error,
    return_errors,
)
from agent_rft.actors.runtime.keep_alive import set_keep_alive
from agent_rft.errors import DiscardError, RftError

LOG = logging.getLogger(__name__)
CONNECT_S = 5.0
"""Timeout for connecting, and for receiving the secret."""
CONNECT_TRIES = 2
"""Number of connection attempts. The actor may have restarted on another port after it returned its address."""
WELCOME = b"."
"""Reply of the server to the correct secret. Another program on the same port would not send it."""
LENGTH_BYTES = 4
ChannelMethod = Callable[..., Awaitable[Any]]
"""A method that takes and returns JSON values, and raises an RftError for expected failures."""


@dataclass(frozen=True, slots=True)
class ChannelAddress:
    """Host and port of an actor, and the secret that a client must send first."""

    host: str
    port: int
    secret: str = field(repr=False)


def ray_encrypts(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether Ray uses TLS. If so, channels must not be used, because they are not encrypted."""
    return environment.get("RAY_USE_TLS") == "1"


# -- in the actor ------------------------------------------------------------------------------------------------------


class ChannelActor:
    """Base class of actors that can be called over a channel. The `__init__` of a subclass calls `_serve_methods`."""

    def _serve_methods(self, methods: Mapping[str, ChannelMethod]) -> None:
        self._listener = ChannelServer(methods)

    async def get_channel_address(self) -> ChannelAddress | None:
        """Return the address where this actor listens; None if the actor cannot listen, or if Ray uses TLS."""
        if ray_encrypts():
            return None
        try:
            return await self._listener.start(ray.util.get_node_ip_address())
        except OSError as error:
            LOG.warning("cannot listen on a port; using Ray calls instead: %r", error)
            return None

    async def lifeline(self) -> None:
        """Wait forever. If this call fails, the caller knows that the actor died."""
        await asyncio.Event().wait()

    async def call(self, method: str, arguments: Sequence[Any]) -> Any:
        """Call one of the channel's methods through Ray, for callers that cannot connect."""
        return await return_errors(self._listener.methods[method](*arguments))


class ChannelServer:
    """TCP server for channel calls. When a connection is closed, the running calls of the connection are cancelled."""

    def __init__(self, methods: Mapping[str, ChannelMethod]) -> None:
        self.methods = methods
        self._secret = secrets.token_hex(32)
        self._server: asyncio.Future[asyncio.Server] | None = None

    async def start(self, host: str) -> ChannelAddress:
        """Listen on a free port of `host` unless already listening, and return the address."""
        if self._server is None:
            self._server = asyncio.ensure_future(asyncio.start_server(self._serve, host, 0))
        server = await asyncio.shield(self._server)
        return ChannelAddress(host, server.sockets[0].getsockname()[1], self._secret)

    async def close(self) -> None:
        """Stop accepting connections."""
        if self._server is not None:
            (await self._server).close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running: dict[int, asyncio.Task[None]] = {}
        set_keep_alive(writer.get_extra_info("socket"))
        try:
            async with asyncio.timeout(CONNECT_S):
                secret = await reader.readexactly(len(self._secret))
            if not hmac.compare_digest(secret, self._secret.encode()):
                return
            writer.write(WELCOME)
            while True:
                number, *call = await _read_frame(reader)
                if call:
                    task = running[number] = asyncio.create_task(self._answer(writer, number, *call))
                    task.add_done_callback(lambda _, number=number: running.pop(number))  # type: ignore[misc]
                elif number in running:
                    running[number].cancel()
        except (OSError, EOFError):  # TimeoutError is an OSError
            pass
        finally:
            for task in running.values():
                task.cancel()
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, number: int, method: str, arguments: list[Any]) -> None:
        try:
            answer = _encode_frame([number, await self.methods[method](*arguments)])
        except RftError as error:
            answer = _encode_frame([number, None, type(error).__name__, error.message, error.details], default=str)
        except Exception:  # noqa: BLE001 - a bug, which the caller must get
            answer = _encode_frame([number, None, "", traceback.format_exc(), {}])
        writer.write(answer)


# -- in the caller -----------------------------------------------------------------------------------------------------


class ChannelClient:
    """Client that calls one actor from one event loop, and connects at the first call.

    `actor_name` is used in messages. A call raises `lost_error` if the actor dies, or if the call takes longer than
    `deadline_s`. Set `deadline_s` to None if the methods have their own deadlines. If Ray restarts the actor, the call
    waits up to `restart_s` for the restart before it raises the error.
    """

    def __init__(
        self,
        actor: Any,
        actor_name: str,
        lost_error: type[DiscardError],
        deadline_s: float | None = DEADLINE_S,
        restart_s: float = RESTART_S,
    ) -> None:
        self._actor = actor
        self._actor_name = actor_name
        self._lost_error = lost_error
        self._deadline_s = deadline_s
        self._restart_s = restart_s
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._uses_ray = False

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the actor and return its result.

        If this call is cancelled or times out, the method is cancelled in the actor.

        Raises:
            RftError: The method raised this error.
            DiscardError: The actor died or did not answer in time. The error is an instance of `lost_error`.
        """
        await self.connect()
        connection = self._connection
        if connection is None:
            ref = self._actor.call.remote(method, arguments)
            return await call_restartable_actor(self._actor, ref, self._actor_name, self._lost_error, self._deadline_s)
        try:
            async with asyncio.timeout(self._deadline_s) as deadline:
                return await connection.call(method, arguments)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise self._lost_error(
                f"{self._actor_name} did not answer within {self._deadline_s:g} s", kind="late"
            ) from None
        except _ConnectionBroken as broken:
            with suppress(DiscardError):
                await self.connect()
            why = f"the process of {self._actor_name} was lost during a call ({broken})"
            raise self._lost_error(why, kind=broken.kind) from None

    async def connect(self) -> None:
        """Connect, unless the client is already connected.

        If the actor is alive but the connection cannot be opened, all later calls are Ray calls.

        Raises:
            DiscardError: The actor does not answer. The error is an instance of the client's `lost_error`.
        """
        if self._uses_ray or (self._connection is not None and self._connection.broken is None):
            return
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect_now())
            self._connecting.add_done_callback(_retrieve_exception)  # in case all waiters were cancelled
        await asyncio.shield(self._connecting)

    async def _connect_now(self) -> None:
        for _ in range(CONNECT_TRIES):
            ref = self._actor.get_channel_address.options(max_task_retries=-1).remote()
            address: ChannelAddress | None = await call_actor(ref, self._actor_name, self._lost_error, self._restart_s)
            if address is None:
                break
            try:
                async with asyncio.timeout(CONNECT_S):
                    reader, writer = await _open_connection(address)
            except (OSError, EOFError) as error:
                LOG.warning("cannot connect to %s at %s:%d: %r", self._actor_name, address.host, address.port, error)
                continue
            self._connection = _Connection(reader, writer, self._actor.lifeline.remote())
            return
        self._connection, self._uses_ray = None, True


async def _open_connection(address: ChannelAddress) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and send the secret.

    Raises:
        OSError: The connection failed.
        EOFError: The secret got no reply, so another program listens on the port.
    """
    reader, writer = await asyncio.open_connection(address.host, address.port)
    set_keep_alive(writer.get_extra_info("socket"))
    try:
        writer.write(address.secret.encode())
        await reader.readexactly(len(WELCOME))
    except BaseException:  # on cancellation too, so that no socket leaks
        writer.close()
        raise
    return reader, writer


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


class _ConnectionBroken(Exception):
    """The connection broke, so its pending calls get no results. `kind` is LOST or UNREACHABLE."""

    def __init__(self, why: str, kind: str) -> None:
        super().__init__(why)
        self.kind = kind


class _Connection:
    """Open connection to an actor; `lifeline` references a Ray call that ends only when the actor dies."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lifeline: Any) -> None:
        self.broken: _ConnectionBroken | None = None
        self._writer = writer
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks = [asyncio.create_task(self._read(reader)), asyncio.create_task(self._watch(lifeline))]

    async def call(self, method: str, arguments: Sequence[Any]) -> Any:
        if self.broken is not None:
            raise self.broken
        number = next(self._numbers)
        self._writer.write(_encode_frame([number, method, arguments]))
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            return await answer
        except asyncio.CancelledError:
            if self.broken is None:
                self._writer.write(_encode_frame([number]))
            raise
        finally:
            self._waiting.pop(number, None)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                number, value, *error = await _read_frame(reader)
                answer = self._waiting.get(number)
                if answer is None or answer.done():
                    continue
                if error:
                    answer.set_exception(_decode_error(*error))
                else:
                    answer.set_result(value)
        except (OSError, EOFError):
            pass
        finally:
            self._break("the connection was closed", LOST)

    async def _watch(self, lifeline: Any) -> None:
        try:
            await await_result(lifeline)
        except RayError as error:
            self._break(type(error).__name__, classify_ray_error(error))

    def _break(self, why: str, kind: str) -> None:
        if self.broken is not None:
            return
        self.broken = _ConnectionBroken(why, kind)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(_ConnectionBroken(why, kind))
        self._writer.close()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()


# -- frames ------------------------------------------------------------------------------------------------------------


def _encode_frame(content: Sequence[Any], default: Callable[[Any], str] | None = None) -> bytes:
    body = json.dumps(content, separators=(",", ":"), default=default).encode()
    return len(body).to_bytes(LENGTH_BYTES) + body


async def _read_frame(reader: asyncio.StreamReader) -> list[Any]:
    """Read the next frame.

    Raises:
        EOFError: The connection was closed (asyncio.IncompleteReadError is an EOFError).
    """
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
    content: list[Any] = json.loads(await reader.readexactly(length))
    return content


def _decode_error(name: str, message: str, details: dict[str, Any]) -> Exception:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, RftError):
        return kind(message, **details)
    return RuntimeError(message)
