"""Uvicorn's HTTP protocol with deadlines and limits for client connections.

A connection is in one of four states:

    headers   waiting for the request's headers, for at most `headers_s`
    request   the API is handling the request; the request body has separate deadlines
    rest      the response was sent, but the client is still sending the request body, for at most `rest_s`
    idle      waiting for the next request, for at most uvicorn's keep-alive time

In every state, a client is disconnected if it reads nothing of a pending response for `unread_s` seconds.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import sys
import termios
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from agent_rft.serve.http.auth import client_network
from agent_rft.serve.http.client_limits import Deadlines, OwnerQuota
from agent_rft.wire.api_errors import ApiError, error_body

MAX_HEADER_BYTES, MAX_HEADERS = 64 * 1024, 100
MAX_PIPELINED = 8
"""Maximum requests that a client may send while it waits for the response to an earlier request."""


class GuardedProtocol(HttpToolsProtocol):
    """Protocol of one client connection. `connections` limits the open connections, in total and per IP address."""

    def __init__(self, connections: OwnerQuota, deadlines: Deadlines, **options: Any) -> None:
        super().__init__(**options)
        self._deadlines = deadlines
        self._quota = connections
        self._address: str | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._running_cycle: RequestResponseCycle | None = None
        self._in_headers = False
        self._had_callback = False
        self._header_bytes = 0

    # -- the connection ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = client_network(self.client[0] if self.client else "")
        if self._quota.take(address):
            self._address = address
            self._set_read_deadline(self._deadlines.headers_s)
        else:
            message = "Too many connections are open, from this IP address or in total. Try again in a moment."
            self._refuse(ApiError(503, message, code="too_many_connections", type="server_error"))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.pipeline.clear()
        # Uvicorn notifies only the newest request of the connection.
        if self._running_cycle is not None and not self._running_cycle.response_complete:
            self._running_cycle.disconnected = True
            self._running_cycle.message_event.set()
        _cancel(self._read_timer)
        _cancel(self._write_timer)
        if self._address is not None:
            self._quota.give_back(self._address)

    def _set_read_deadline(self, seconds: float | None) -> None:
        _cancel(self._read_timer)
        self._read_timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def _require_progress(self) -> None:
        """Disconnect the client unless it reads part of the response within `unread_s`."""
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(
                self._deadlines.unread_s, self._check_progress, self._count_unread()
            )

    def _check_progress(self, num_unread_before: int) -> None:
        """Disconnect the client if it has read nothing since the last check, or else schedule another check."""
        self._write_timer = None
        if self._count_unread() < num_unread_before:
            self._require_progress()
        else:
            self.transport.abort()

    def _count_unread(self) -> int:
        """Return the number of unread response bytes, in this process and in the socket's buffer."""
        waiting = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        return self.transport.get_write_buffer_size() + int.from_bytes(waiting, sys.byteorder)

    # -- reading -------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._read_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._set_read_deadline(self._deadlines.headers_s)
        self._had_callback = False
        super().data_received(data)
        if not self._had_callback:  # an unfinished header, URL, trailer or chunk extension calls no callback
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
                self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._record_callback()

    def _record_callback(self) -> None:
        self._had_callback, self._header_bytes = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_headers:
            return  # a trailer must not become a header
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS or sum(len(n) + len(v) for n, v in self.headers) > MAX_HEADER_BYTES:
            self._header_bytes = MAX_HEADER_BYTES + 1
            raise ValueError("too many headers")  # httptools stops, and uvicorn calls send_400_response

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._record_callback()
        self._set_read_deadline(None)
        if len(self.url) > MAX_HEADER_BYTES or len(self.pipeline) >= MAX_PIPELINED:
            self._header_bytes = len(self.url)
            raise ValueError("the URL is too long, or too many requests are pipelined")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._record_callback()

    def on_message_complete(self) -> None:
        self._record_callback()
        super().on_message_complete()
        if self.cycle.response_complete:
            self._set_read_deadline(self.timeout_keep_alive)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if self.cycle.more_body and not self.pipeline:
            self._set_read_deadline(self._deadlines.rest_s)
        super().on_response_complete()
        if self.transport.is_closing():
            self._require_progress()

    # -- writing -------------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._require_progress()

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._write_timer)
        self._write_timer = None

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # close() would wait until the client has read its response

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is invalid HTTP or has oversized headers, with an error in the API's format.

        Uvicorn's own method would respond in plain text.
        """
        if self._header_bytes > MAX_HEADER_BYTES:
            message = f"The URL and headers exceed {MAX_HEADER_BYTES:,} bytes, or there are over {MAX_HEADERS} headers."
            self._refuse(ApiError(431, message, code="headers_too_large"))
        else:
            self._refuse(ApiError(400, "The request is not valid HTTP/1.1.", code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        body = json.dumps(error_body(error)).encode()
        head = f"HTTP/1.1 {error.status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()
        self._require_progress()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
