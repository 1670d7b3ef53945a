"""HTTP transport: sends one request, reads its response, and maps aiohttp's errors to errors without secrets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver
from multidict import CIMultiDict
from yarl import URL

from agent_rft.actors.endpoints.http_response import format_status
from agent_rft.actors.endpoints.network.address_guard import AddressGuard, ForbiddenAddress
from agent_rft.actors.endpoints.network.proxies import Proxy
from agent_rft.actors.endpoints.network.response_limits import MAX_BODY_BYTES, ResponseLimitExceeded
from agent_rft.actors.runtime.keep_alive import set_keep_alive

WAIT_STATUSES = frozenset({408, 425, 429, 503})
REMAINING = ("X-RateLimit-Remaining", "RateLimit-Remaining")
"""Headers with the number of requests left before the endpoint's rate limit."""
CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 4.0
"""Seconds that an idle connection stays open: less than the 5 s of uvicorn and Node, so that no connection is reused
while the server closes it."""


class Reply(NamedTuple):
    """The response to one request. If `truncated` is True, `body` contains only the first MAX_BODY_BYTES."""

    status: int
    body: bytes
    truncated: bool
    retry_after: str | None
    rate_limited: bool = False
    """Whether a header reports that the endpoint's rate limit is reached."""

    @property
    def asks_to_wait(self) -> bool:
        """Whether the endpoint asks the client to send the same request again later."""
        if self.status in WAIT_STATUSES:
            return True
        return self.status == 403 and (self.retry_after is not None or self.rate_limited)


class TransportError(Exception):
    """Error: no complete response arrived.

    If `connected` is True, the connection was established. If `may_retry` is True, another attempt may succeed.
    """

    def __init__(self, why: str, connected: bool, may_retry: bool) -> None:
        super().__init__(why)
        self.why = why
        self.connected = connected
        self.may_retry = may_retry


class Transport:
    """HTTP transport that POSTs JSON to one URL."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        guard: AddressGuard,
        resolver: AbstractResolver | None,
        proxy: Proxy | None = None,
    ) -> None:
        self._url = URL(url)
        self._proxy = proxy
        self._headers = headers
        self._guard = guard
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None

    async def send(self, payload: bytes, headers: Mapping[str, str]) -> Reply:
        """Send one request.

        Raises:
            TransportError: No complete response arrived.
            ForbiddenAddress: The host resolves to a forbidden address.
        """
        try:
            async with self._open_session().post(
                self._url,
                data=payload,
                headers=headers,
                allow_redirects=False,
                proxy=None if self._proxy is None else self._proxy.url,
            ) as response:
                body, truncated = await _read_body(response.content, MAX_BODY_BYTES)
                rate_limited = any(response.headers.get(name) == "0" for name in REMAINING)
                return Reply(response.status, body, truncated, response.headers.get("Retry-After"), rate_limited)
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, ForbiddenAddress):
                raise error.os_error from None
            unconnected = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
            through = "" if self._proxy is None else f" through {self._proxy}"
            raise TransportError(
                describe_transport_error(error) + through,
                connected=not isinstance(error, unconnected),
                may_retry=not isinstance(error, ResponseLimitExceeded) or error.is_slow,
            ) from None

    async def close(self) -> None:
        """Close the connections; requests in flight fail."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open_session(self) -> aiohttp.ClientSession:
        """Return the aiohttp session, created at the first call so that it belongs to the running event loop.

        The session has no connection limit, since the gate limits requests. Cookies are ignored, since they would leak
        from one rollout to the next.
        """
        if self._session is None:
            headers = CIMultiDict({"Content-Type": "application/json"})
            headers.update(self._headers)
            self._session = aiohttp.ClientSession(
                connector=self._guard.make_connector(self._url, self._resolver, limit=0, keepalive_timeout=KEEPALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=headers,
                request_class=_Request,
                timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S),
            )
        return self._session


class _Request(aiohttp.ClientRequest):
    """Request whose connection sends TCP keep-alive probes until the response arrives."""

    async def send(self, conn: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
        if conn.transport is not None:
            set_keep_alive(conn.transport.get_extra_info("socket"))
        return await super().send(conn)


async def _read_body(stream: aiohttp.StreamReader, limit: int) -> tuple[bytes, bool]:
    """Read the first `limit` bytes; return them and whether the stream had more."""
    body = await stream.readany()  # most bodies arrive in one chunk
    if stream.at_eof() and len(body) <= limit:
        return body, False
    pieces = bytearray(body)
    async for chunk in stream.iter_any():
        pieces += chunk
        if len(pieces) > limit:
            break
    return bytes(memoryview(pieces)[:limit]), len(pieces) > limit


def describe_transport_error(error: Exception) -> str:
    """Return why a request failed, without aiohttp's own message, which may contain the full URL with its query."""
    if isinstance(error, ResponseLimitExceeded):
        return f"the response was aborted: {error.why}"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the connection was refused ({format_status(error.status)})"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "the endpoint's TLS certificate is not trusted"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno or 0
        reason = os.strerror(number) if number > 0 else error.os_error.strerror  # getaddrinfo's codes are negative
        return f"no connection ({reason or type(error.os_error).__name__})"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"no connection within {CONNECT_TIMEOUT_S:g} s"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed without a response"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the response is incomplete"
    if isinstance(error, aiohttp.ClientResponseError):
        return "the response is not valid HTTP"
    return f"the connection failed ({type(error).__name__})"
