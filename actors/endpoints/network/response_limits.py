"""Limits on the bytes of a response before they are parsed.

The body's reader bounds only the decoded bytes of the body. A response can also be endless in other ways: header
blocks, interim responses (1xx), chunk extensions, trailers, chunks or segments of one byte, and compressed bytes that
decode to nothing. `BoundedResponseHandler` therefore counts the bytes that arrive for each request.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from agent_rft.spec.endpoints import MAX_OUTPUT_BYTES

MAX_BODY_BYTES = 6 * MAX_OUTPUT_BYTES + 65_536
"""Maximum decoded bytes read from a response: 6 bytes of JSON for each byte of output, and 64 KiB for the response's
other keys."""
MAX_FRAMING_BYTES = 65_536
"""Maximum bytes of a response without its body: enough for 13,000 chunks or 2,000 interim responses."""
MAX_WIRE_BYTES = 9 << 20
"""Maximum bytes of a response.

Each reader of bodies has a lower limit: MAX_BODY_BYTES for endpoints, and 8 MiB for OpenAPI documents. The reader can
therefore report a body that is too large."""
MAX_SEGMENTS = 10_000
"""Maximum number of pieces in which a response may arrive. A body of 8 MiB needs 5,800 packets."""
RATE_WINDOW_S = 60.0
MIN_BYTES_PER_WINDOW = 300
"""Minimum number of bytes that must arrive in each period of RATE_WINDOW_S until the response is complete."""
HEADER_SLICE_BYTES = 16_384
"""Maximum bytes that are parsed at a time until the headers are complete."""


class ResponseLimitExceeded(aiohttp.ClientError):
    """Error: a response exceeded a limit. If `is_slow` is True, the response was too slow, and a retry may help."""

    def __init__(self, why: str, *, is_slow: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.is_slow = is_slow


class BoundedResponseHandler(ResponseHandler):
    """Response handler of a client connection. It aborts the connection if a response exceeds a limit."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._rate_timer: asyncio.TimerHandle | None = None
        self._start_response()

    def _start_response(self) -> None:
        self._drop_rate_timer()
        self._wire_bytes = 0
        self._num_segments = 0
        self._bytes_in_earlier_windows = 0
        self._body: StreamReader | None = None

    def set_response_params(self, **params: Any) -> None:
        self._start_response()
        super().set_response_params(**params)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Receive parsed headers and the body that follows them; called by aiohttp."""
        message, body = data
        if message.code >= 200 and self._body is None:
            self._body = body
            body.on_eof(self._drop_rate_timer)
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        if data:  # aiohttp calls this method without data to continue after a pause
            self._wire_bytes += len(data)
            self._num_segments += 1
            if self._rate_timer is None and not (self._body is not None and self._body.is_eof()):
                self._rate_timer = self._loop.call_later(RATE_WINDOW_S, self._check_rate)
        position = 0
        while position < len(data) and self._body is None and self.transport is not None:
            super().data_received(data[position : position + HEADER_SLICE_BYTES])
            position += HEADER_SLICE_BYTES
            self._check_framing(len(data) - position)
        if self.transport is not None and (position < len(data) or not data):
            super().data_received(data[position:])
            self._check_framing(0)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._drop_rate_timer()
        super().connection_lost(exc)

    def _check_framing(self, unparsed_bytes: int) -> None:
        if self._reading_paused:  # bytes of the body may still be unparsed
            return
        body_bytes = 0 if self._body is None or self._body is EMPTY_PAYLOAD else self._body.total_raw_bytes
        if self._wire_bytes - max(unparsed_bytes, 0) - body_bytes > MAX_FRAMING_BYTES:
            self._fail(f"it has more than {MAX_FRAMING_BYTES:,} bytes in addition to its body")
        elif self._wire_bytes > MAX_WIRE_BYTES:
            self._fail(f"it has more than {MAX_WIRE_BYTES:,} bytes")
        elif self._num_segments > MAX_SEGMENTS:
            self._fail(f"it arrived in more than {MAX_SEGMENTS:,} pieces")

    def _check_rate(self) -> None:
        self._rate_timer = None
        if self._wire_bytes - self._bytes_in_earlier_windows < MIN_BYTES_PER_WINDOW and not self._reading_paused:
            self._fail(f"less than {MIN_BYTES_PER_WINDOW} bytes of it arrived within {RATE_WINDOW_S:g} s", is_slow=True)
            return
        self._bytes_in_earlier_windows = self._wire_bytes
        self._rate_timer = self._loop.call_later(RATE_WINDOW_S, self._check_rate)

    def _fail(self, why: str, *, is_slow: bool = False) -> None:
        error = ResponseLimitExceeded(why, is_slow=is_slow)
        body = self._body
        self.abort()
        self.set_exception(error)
        self._buffer.clear()
        if body is not None:
            body.set_exception(error)

    def _drop_rate_timer(self) -> None:
        if self._rate_timer is not None:
            self._rate_timer.cancel()
            self._rate_timer = None
