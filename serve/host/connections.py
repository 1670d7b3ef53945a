"""What a connection may cost before and after its request: uvicorn's protocol with deadlines and bounds.

A connection is in one of four states, and only in the second one the API sees it:

    headers   the request's headers are awaited, for `headers_s`
    request   the API works on it; reading the body has its own deadlines
    rest      it was answered, but the client still sends its body, for `rest_s`
    idle      the next request is awaited, for uvicorn's keep-alive time

In each of them a client that reads nothing of an answer for `unread_s` is disconnected.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import sys
import termios
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from agent_rft.serve.http.auth import network_of
from agent_rft.serve.http.client_limits import Deadlines, Shares
from agent_rft.wire.errors import ApiError, body_of

MAX_HEADER_BYTES, MAX_HEADERS = 64 * 1024, 100
MAX_PIPELINED = 8
"""Requests that are sent before the answer to an earlier one; hardly any client does so."""


class GuardedProtocol(HttpToolsProtocol):
    """A connection of a client; `connections` bounds how many there are, in all and from one address."""

    def __init__(self, connections: Shares, deadlines: Deadlines, **options: Any) -> None:
        super().__init__(**options)
        self._deadlines = deadlines
        self._all = connections
        self._address: str | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None
        self._in_headers = False
        self._went_on = False
        self._header_bytes = 0

    # -- the connection ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = network_of(self.client[0] if self.client else "")
        if self._all.take(address):
            self._address = address
            self._read_within(self._deadlines.headers_s)
        else:
            message = "Too many connections are open, from this address or in all; try again in a moment."
            self._refuse(ApiError(503, message, code="too_many_connections", type="server_error"))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:  # uvicorn tells only the newest request
            self._running.disconnected = True
            self._running.message_event.set()
        _cancel(self._reading)
        _cancel(self._writing)
        if self._address is not None:
            self._all.give_back(self._address)

    def _read_within(self, seconds: float | None) -> None:
        _cancel(self._reading)
        self._reading = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def _be_read(self) -> None:
        """Disconnects the client unless it reads soon."""
        if self._writing is None:
            self._writing = self.loop.call_later(self._deadlines.unread_s, self._go_on_if_read, self._num_unread())

    def _go_on_if_read(self, before: int) -> None:
        """A client that reads slowly may take minutes until the system wants more: what it took counts."""
        self._writing = None
        if self._num_unread() < before:
            self._be_read()
        else:
            self.transport.abort()

    def _num_unread(self) -> int:
        """Bytes of answers that wait, here and in the system, for the client to take them."""
        waiting = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        return self.transport.get_write_buffer_size() + int.from_bytes(waiting, sys.byteorder)

    # -- reading -------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._reading is None and (self.cycle is None or self.cycle.response_complete):
            self._read_within(self._deadlines.headers_s)
        self._went_on = False
        super().data_received(data)
        if not self._went_on:  # a header, URL, trailer or chunk's extension that has not ended is in no callback yet
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
                self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._go_on()

    def _go_on(self) -> None:
        self._went_on, self._header_bytes = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_headers:
            return  # a trailer, which must not become a header
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS or sum(len(n) + len(v) for n, v in self.headers) > MAX_HEADER_BYTES:
            self._header_bytes = MAX_HEADER_BYTES + 1
            raise ValueError("too many headers")  # httptools stops, and uvicorn calls send_400_response

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._go_on()
        self._read_within(None)
        if len(self.url) > MAX_HEADER_BYTES or len(self.pipeline) >= MAX_PIPELINED:
            self._header_bytes = len(self.url)
            raise ValueError("a long URL, or many requests at once")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._go_on()

    def on_message_complete(self) -> None:
        self._go_on()
        super().on_message_complete()
        if self.cycle.response_complete:
            self._read_within(self.timeout_keep_alive)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if self.cycle.more_body and not self.pipeline:
            self._read_within(self._deadlines.rest_s)
        super().on_response_complete()
        if self.transport.is_closing():
            self._be_read()

    # -- writing -------------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._be_read()

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._writing)
        self._writing = None

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # closing would wait until the client has read its answer

    def send_400_response(self, msg: str) -> None:
        """Answers what is not HTTP, or too long to be read as HTTP; uvicorn's own answer is plain text."""
        if self._header_bytes > MAX_HEADER_BYTES:
            message = f"The request's URL and headers are over {MAX_HEADER_BYTES:,} bytes or {MAX_HEADERS} headers."
            self._refuse(ApiError(431, message, code="headers_too_large"))
        else:
            self._refuse(ApiError(400, "The request is not valid HTTP/1.1.", code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        body = json.dumps(body_of(error)).encode()
        head = f"HTTP/1.1 {error.status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()
        self._be_read()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
