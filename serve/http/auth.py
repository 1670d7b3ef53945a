"""Authentication by `Authorization: Bearer sk-rft-...` or session cookie, rate limits per key, and scopes.

The middleware authenticates every request below `/v1` before it reads the body. A route only declares the scope that it
requires.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool

from agent_rft.serve.stores.key_store import ApiKey, Scope
from agent_rft.wire.api_errors import ApiError

MAX_FAILED_LOGINS, MAX_TOTAL_FAILED_LOGINS = 20, 400
"""Maximum number of requests with a wrong key per minute, for each client address and in total.

All of these requests may arrive in one burst."""
MAX_ADDRESSES = 10_000
BURST_S = 10.0
"""Maximum size of a burst: a key may save up the unused requests of this many seconds."""
MAX_CACHED_KEYS = 10_000
MAX_UNKNOWN_LOOKUPS = 4
"""Maximum concurrent lookups of keys that are not in the cache."""
KEY_CACHE_S = 1.0
"""Seconds for which a valid key is cached. A key may still work for this long after it is revoked."""


class KeyFinder(Protocol):
    """Interface that finds the API key for a token. The key store and the session store implement it."""

    def find(self, token: str) -> ApiKey | None: ...


class NoSessions:
    """KeyFinder for an app without a console. It finds no API key, because there are no sessions."""

    def find(self, token: str) -> ApiKey | None:
        return None


@dataclass(slots=True)
class _Bucket:
    tokens: float
    refilled_at: float


class KeyRateLimit:
    """Rate limit with one token bucket per API key. Each process has its own buckets."""

    def __init__(self, requests_per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._default = requests_per_minute
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def take(self, key: ApiKey) -> float:
        """Take a token from the key's bucket and return 0. If the bucket is empty, return the seconds to wait."""
        rate_per_s = (key.requests_per_minute or self._default) / 60
        capacity, now = max(rate_per_s * BURST_S, 1.0), self._clock()
        bucket = self._buckets.pop(key.id, None) or _Bucket(capacity, now)
        self._buckets[key.id] = bucket  # reinserted at the end: the first entry is the least recently used
        if len(self._buckets) > MAX_CACHED_KEYS:
            del self._buckets[next(iter(self._buckets))]
        bucket.tokens = min(bucket.tokens + (now - bucket.refilled_at) * rate_per_s, capacity)
        bucket.refilled_at = now
        if bucket.tokens < 1:
            return (1 - bucket.tokens) / rate_per_s
        bucket.tokens -= 1
        return 0.0


class FailedLogins:
    """Rate limit for requests with a wrong key, per client address and in total. Each process has its own counts.

    Failed logins never block requests with a valid key, since all clients behind a proxy share one address.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all = _Bucket(float(MAX_TOTAL_FAILED_LOGINS), clock())
        self._by_address: dict[str, _Bucket] = {}

    def record_failure(self, client: str) -> float:
        """Count a failed login and return 0. After too many failures, return the seconds to wait."""
        address, now = client_network(client), self._clock()
        own = self._by_address.pop(address, None) or _Bucket(float(MAX_FAILED_LOGINS), now)
        self._by_address[address] = own  # reinserted at the end: the first entry is the least recently used
        if len(self._by_address) > MAX_ADDRESSES:
            del self._by_address[next(iter(self._by_address))]
        buckets = (own, MAX_FAILED_LOGINS), (self._all, MAX_TOTAL_FAILED_LOGINS)
        for bucket, size in buckets:
            bucket.tokens = min(bucket.tokens + (now - bucket.refilled_at) * size / 60, size)
            bucket.refilled_at = now
        wait_s = max((1 - bucket.tokens) * 60 / size for bucket, size in buckets)
        if wait_s > 0:
            return wait_s
        for bucket, _ in buckets:
            bucket.tokens -= 1
        return 0.0


class Authenticator:
    """Finds the API key of a request, and enforces the key's rate limit."""

    def __init__(
        self,
        keys: KeyFinder,
        rate: KeyRateLimit,
        clock: Callable[[], float] = time.monotonic,
        sessions: KeyFinder | None = None,
        cache_s: float = KEY_CACHE_S,
    ) -> None:
        self._keys = keys
        self._sessions = sessions or NoSessions()
        self._rate = rate
        self._clock = clock
        self._cache_s = cache_s
        self._failed = FailedLogins(clock)
        self._cache: dict[bytes, tuple[ApiKey, float]] = {}
        self._unknown = asyncio.Semaphore(MAX_UNKNOWN_LOOKUPS)

    async def authenticate(self, authorization: str, client: str = "", session: str = "") -> ApiKey:
        """Return the API key of an Authorization header, or of the session if the header is empty.

        Args:
            authorization: Value of the header.
            client: The client's IP address.
            session: Token of the session cookie.

        Raises:
            ApiError: 401 if the key is missing, invalid, expired or revoked. 429 if the key exceeds its rate limit, or
                if the client has sent too many wrong keys.
        """
        scheme, _, token = authorization.partition(" ")
        if not authorization and session:
            key = await self._find(session, self._sessions)
        elif scheme.lower() != "bearer" or not token:
            raise _unauthorized_error(
                "The API key is missing. Send the header Authorization: Bearer sk-rft-...", "missing_api_key"
            )
        else:
            key = await self._find(token.strip(), self._keys)
        if key is None:
            wait_s = self._failed.record_failure(client)
            if wait_s > 0:
                message = f"Too many requests with a wrong API key. Use a valid key, or try again in {wait_s:.1f} s."
                raise _rate_limit_error(message, "too_many_failed_logins", wait_s)
            if not authorization:
                raise _unauthorized_error(
                    "The session has expired, or its API key was revoked. Log in again.", "console_session_ended"
                )
            raise _unauthorized_error("The API key is invalid, expired or revoked.", "invalid_api_key")
        wait_s = self._rate.take(key)
        if wait_s > 0:
            message = f"The API key exceeds its rate limit. Try again in {wait_s:.1f} s."
            raise _rate_limit_error(message, "rate_limit_exceeded", wait_s)
        return key

    async def _find(self, token: str, among: KeyFinder) -> ApiKey | None:
        digest = hashlib.sha256(
            f"{among is self._keys} {token}".encode()
        ).digest()  # a session token must not match an API key
        cached = self._cache.get(digest)
        if cached is not None and self._clock() < cached[1]:
            return cached[0]
        if cached is not None:
            key = await run_in_threadpool(among.find, token)
        else:  # a flood of wrong keys must not occupy the threads that other requests need
            async with self._unknown:
                key = await run_in_threadpool(among.find, token)
        self._cache.pop(digest, None)
        if key is not None:
            self._cache[digest] = key, self._clock() + self._cache_s
            if len(self._cache) > MAX_CACHED_KEYS:
                del self._cache[next(iter(self._cache))]
        return key


def require_scope(scope: Scope) -> Callable[..., Awaitable[ApiKey]]:
    """Return a FastAPI dependency that returns the request's key, or raises ApiError 403 if the key lacks `scope`."""

    async def check(request: Request, _: Annotated[Any, Security(_bearer)]) -> ApiKey:
        key: ApiKey = request.state.api_key
        if not key.has_scope(scope):
            raise _insufficient_scope_error(
                scope, f"This route requires the scope {scope}. The API key has only {', '.join(key.scopes)}."
            )
        request.state.has_scope = True
        return key

    return check


def check_may_change(key: ApiKey, owner: str | None, what: str) -> None:
    """Check that a key may change or delete an object; `what` is the kind of object, for the error message.

    The key must own the object or have the scope `admin`. If the object's owner is unknown, any key may change it.

    Raises:
        ApiError: 403, the key may not change the object.
    """
    if owner not in (None, key.id) and not key.has_scope("admin"):
        scopes = ", ".join(key.scopes)
        message = f"Only admins and the owner of this {what} can change it. The API key has only the scopes {scopes}."
        raise _insufficient_scope_error("admin", message)


def _insufficient_scope_error(scope: Scope, message: str) -> ApiError:
    headers = {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'}
    return ApiError(403, message, code="insufficient_scope", type="permission_error", headers=headers)


def _rate_limit_error(message: str, code: str, wait_s: float) -> ApiError:
    headers = {"Retry-After": str(math.ceil(wait_s)), "Retry-After-Ms": str(math.ceil(wait_s * 1000))}
    return ApiError(429, message, code=code, type="rate_limit_error", headers=headers)


def client_network(client: str) -> str:
    """Return the client's IPv4 address or /64 IPv6 network, or an empty string if `client` is not an IP address.

    A client usually controls all addresses of its /64 network.
    """
    try:
        address = ip_address(client)
    except ValueError:
        return ""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(int(address) >> 64)
    return client


def _unauthorized_error(message: str, code: str) -> ApiError:
    headers = {"WWW-Authenticate": "Bearer"}
    return ApiError(401, message, code=code, type="authentication_error", headers=headers)


_bearer = HTTPBearer(auto_error=False, description="An API key: sk-rft-...")
"""Describes the authentication scheme on the OpenAPI page. The middleware authenticates requests."""

Reader = Annotated[ApiKey, Depends(require_scope("read"))]
Writer = Annotated[ApiKey, Depends(require_scope("write"))]
Admin = Annotated[ApiKey, Depends(require_scope("admin"))]
