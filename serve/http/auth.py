"""Authentication by `Authorization: Bearer sk-rft-...` or a session's cookie, a rate limit for each key, and scopes.

The frame authenticates every request below `/v1` before it reads the body; a route only declares its scope.
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

from agent_rft.serve.stores.keys import ApiKey, Scope
from agent_rft.wire.errors import ApiError

FAILED_LOGINS, ALL_FAILED_LOGINS = 20, 400
"""Requests with a wrong key that an address, and all together, may send at once and again in each minute."""
MAX_ADDRESSES = 10_000
BURST_S = 10.0
"""A key may save up at most this long of unused rate."""
MAX_CACHED_KEYS = 10_000
UNKNOWN_LOOKUPS = 4
"""Keys that were not valid before and are looked up at the same time."""
KEY_CACHE_S = 1.0
"""How long a key is cached, and so how long a revoked key may still work."""


class KeyFinder(Protocol):
    """The part of the stores of keys and of sessions that authentication needs."""

    def find(self, token: str) -> ApiKey | None: ...


class NoSessions:
    """The sessions of an app without a console."""

    def find(self, token: str) -> ApiKey | None:
        return None


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class RateLimit:
    """A token bucket for each key, local to this process."""

    def __init__(self, requests_per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._default = requests_per_minute
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def wait_s(self, key: ApiKey) -> float:
        """Takes a token and returns 0, or returns the seconds until a token is available."""
        rate_per_s = (key.requests_per_minute or self._default) / 60
        capacity, now = max(rate_per_s * BURST_S, 1.0), self._clock()
        bucket = self._buckets.pop(key.id, None) or _Bucket(capacity, now)
        self._buckets[key.id] = bucket  # reinserted at the end: the first entry is the least recently used
        if len(self._buckets) > MAX_CACHED_KEYS:
            del self._buckets[next(iter(self._buckets))]
        bucket.tokens = min(bucket.tokens + (now - bucket.at) * rate_per_s, capacity)
        bucket.at = now
        if bucket.tokens < 1:
            return (1 - bucket.tokens) / rate_per_s
        bucket.tokens -= 1
        return 0.0


class FailedLogins:
    """Counts requests with a wrong key, by address and in total; local to this process, of bounded memory.

    A right key is never refused for the wrong ones of others, who may have the same address behind a proxy.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all = _Bucket(float(ALL_FAILED_LOGINS), clock())
        self._of: dict[str, _Bucket] = {}

    def wait_s(self, client: str) -> float:
        """Counts a failure and returns 0, or returns the seconds until another one is answered with 401."""
        address, now = network_of(client), self._clock()
        own = self._of.pop(address, None) or _Bucket(float(FAILED_LOGINS), now)
        self._of[address] = own  # reinserted at the end: the first entry is the least recently used
        if len(self._of) > MAX_ADDRESSES:
            del self._of[next(iter(self._of))]
        buckets = (own, FAILED_LOGINS), (self._all, ALL_FAILED_LOGINS)
        for bucket, size in buckets:
            bucket.tokens = min(bucket.tokens + (now - bucket.at) * size / 60, size)
            bucket.at = now
        wait_s = max((1 - bucket.tokens) * 60 / size for bucket, size in buckets)
        if wait_s > 0:
            return wait_s
        for bucket, _ in buckets:
            bucket.tokens -= 1
        return 0.0


class Authenticator:
    """Finds the key of a request and applies its rate limit."""

    def __init__(
        self,
        keys: KeyFinder,
        rate: RateLimit,
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
        self._unknown = asyncio.Semaphore(UNKNOWN_LOOKUPS)

    async def key_of(self, authorization: str, client: str = "", session: str = "") -> ApiKey:
        """Returns the key that an Authorization header of a client's address names, or without one its session's.

        Raises:
            ApiError: 401 if the key is missing, invalid, expired or revoked, 429 if it is over its rate limit or if
                there were too many wrong keys.
        """
        scheme, _, token = authorization.partition(" ")
        if not authorization and session:
            key = await self._find(session, self._sessions)
        elif scheme.lower() != "bearer" or not token:
            raise _unauthorized("Missing API key: send Authorization: Bearer sk-rft-...", "missing_api_key")
        else:
            key = await self._find(token.strip(), self._keys)
        if key is None:
            wait_s = self._failed.wait_s(client)
            if wait_s > 0:
                message = f"Too many requests with a wrong API key; try again in {wait_s:.1f} s, with another one."
                raise _too_many(message, "too_many_failed_logins", wait_s)
            if not authorization:
                raise _unauthorized("The session has ended, or its API key was revoked: log in again.", "session_ended")
            raise _unauthorized("Invalid, expired or revoked API key.", "invalid_api_key")
        wait_s = self._rate.wait_s(key)
        if wait_s > 0:
            message = f"The rate limit of this API key is exceeded; try again in {wait_s:.1f} s."
            raise _too_many(message, "rate_limit_exceeded", wait_s)
        return key

    async def _find(self, token: str, among: KeyFinder) -> ApiKey | None:
        digest = hashlib.sha256(f"{among is self._keys} {token}".encode()).digest()  # no session is a key
        cached = self._cache.get(digest)
        if cached is not None and self._clock() < cached[1]:
            return cached[0]
        if cached is not None:
            key = await run_in_threadpool(among.find, token)
        else:  # a flood of wrong keys waits here for itself, and not for the threads of all others
            async with self._unknown:
                key = await run_in_threadpool(among.find, token)
        self._cache.pop(digest, None)
        if key is not None:
            self._cache[digest] = key, self._clock() + self._cache_s
            if len(self._cache) > MAX_CACHED_KEYS:
                del self._cache[next(iter(self._cache))]
        return key


def requires(scope: Scope) -> Callable[..., Awaitable[ApiKey]]:
    """Returns a dependency that gives the request's key, or raises ApiError 403 if the key lacks `scope`."""

    async def check(request: Request, _: Annotated[Any, Security(_bearer)]) -> ApiKey:
        key: ApiKey = request.state.api_key
        if not key.may(scope):
            raise _lacks(scope, f"This API key has the scopes {', '.join(key.scopes)}; this route requires {scope}.")
        return key

    return check


def check_may_change(key: ApiKey, owner: str | None, what: str) -> None:
    """Checks that a key may change or delete an object: its own, one of an unknown owner, or any with `admin`.

    Raises:
        ApiError: 403.
    """
    if owner not in (None, key.id) and not key.may("admin"):
        scopes = ", ".join(key.scopes)
        message = f"Another API key made this {what}; changing it requires admin, this key has the scopes {scopes}."
        raise _lacks("admin", message)


def _lacks(scope: Scope, message: str) -> ApiError:
    headers = {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'}
    return ApiError(403, message, code="insufficient_scope", type="permission_error", headers=headers)


def _too_many(message: str, code: str, wait_s: float) -> ApiError:
    headers = {"Retry-After": str(math.ceil(wait_s)), "Retry-After-Ms": str(math.ceil(wait_s * 1000))}
    return ApiError(429, message, code=code, type="rate_limit_error", headers=headers)


def network_of(client: str) -> str:
    """Returns an IPv4 address, or the /64 network of an IPv6 address, all of which one client may use."""
    try:
        address = ip_address(client)
    except ValueError:
        return ""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(int(address) >> 64)
    return client


def _unauthorized(message: str, code: str) -> ApiError:
    headers = {"WWW-Authenticate": "Bearer"}
    return ApiError(401, message, code=code, type="authentication_error", headers=headers)


_bearer = HTTPBearer(auto_error=False, description="An API key: sk-rft-...")
"""Documents the scheme on the OpenAPI page; the frame does the authentication."""

Reader = Annotated[ApiKey, Depends(requires("read"))]
Writer = Annotated[ApiKey, Depends(requires("write"))]
Admin = Annotated[ApiKey, Depends(requires("admin"))]
