"""Who may do what: `Authorization: Bearer sk-rft-...`, how fast a key may ask, and the scope that a route wants.

The frame authenticates every request below `/v1` before anything of its body is read; routes only say their scope.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool

from cluster.stores.keys import ApiKey, Scope
from serve.http.errors import ApiError

__all__ = ["Admin", "ApiKey", "Authenticator", "KeyFinder", "RateLimit", "Reader", "Scope", "Writer", "requires"]

BURST_S = 10.0
"""What a key does not use of its rate is kept for that long."""
MAX_BUCKETS = 10_000
KNOWN_S = 1.0


class KeyFinder(Protocol):
    """What is needed of cluster.stores.keys.KeyStore."""

    def find(self, token: str) -> ApiKey | None: ...


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class RateLimit:
    """A token bucket for each key, in this process."""

    def __init__(self, requests_per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._default = requests_per_minute
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def wait_s(self, key: ApiKey) -> float:
        """Takes a token and is 0; where there is none, how long until there is one."""
        rate_per_s = (key.requests_per_minute or self._default) / 60
        most, now = max(rate_per_s * BURST_S, 1.0), self._clock()
        bucket = self._buckets.pop(key.id, None) or _Bucket(most, now)
        self._buckets[key.id] = bucket  # at the end: the first one is the one that was used least recently
        if len(self._buckets) > MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        bucket.tokens = min(bucket.tokens + (now - bucket.at) * rate_per_s, most)
        bucket.at = now
        if bucket.tokens < 1:
            return (1 - bucket.tokens) / rate_per_s
        bucket.tokens -= 1
        return 0.0


class Authenticator:
    """Knows the key of a request and whether it may ask now. A key that was found is known for KNOWN_S: one that is
    revoked opens nothing after that.
    """

    def __init__(self, keys: KeyFinder, rate: RateLimit, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._rate = rate
        self._clock = clock
        self._known: dict[bytes, tuple[ApiKey, float]] = {}

    async def key_of(self, authorization: str) -> ApiKey:
        """The key in an Authorization header.

        Raises:
            ApiError: 401 or 429.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise _unauthorized("You must give an API key: Authorization: Bearer sk-rft-...", "missing_api_key")
        key = await self._find(token.strip())
        if key is None:
            raise _unauthorized("Incorrect API key: this server knows none such, or it was revoked.", "invalid_api_key")
        wait_s = self._rate.wait_s(key)
        if wait_s > 0:
            headers = {"Retry-After": str(math.ceil(wait_s)), "Retry-After-Ms": str(math.ceil(wait_s * 1000))}
            message = f"This key asks too often; try again in {wait_s:.1f} s."
            raise ApiError(429, message, code="rate_limit_exceeded", type="rate_limit_error", headers=headers)
        return key

    async def _find(self, token: str) -> ApiKey | None:
        digest = hashlib.sha256(token.encode()).digest()
        known = self._known.get(digest)
        if known is not None and self._clock() < known[1]:
            return known[0]
        key = await run_in_threadpool(self._keys.find, token)
        self._known.pop(digest, None)
        if key is not None:
            self._known[digest] = key, self._clock() + KNOWN_S
            if len(self._known) > MAX_BUCKETS:
                del self._known[next(iter(self._known))]
        return key


def requires(scope: Scope) -> Callable[..., Awaitable[ApiKey]]:
    """A dependency: the key of the request, which has `scope`, else ApiError 403."""

    async def check(request: Request, _: Annotated[Any, Security(_described)]) -> ApiKey:
        key: ApiKey = request.state.api_key
        if not key.may(scope):
            message = f"This key has the scopes {', '.join(key.scopes)}, but the route wants {scope}."
            raise ApiError(403, message, code="insufficient_scope", type="permission_error")
        return key

    return check


def _unauthorized(message: str, code: str) -> ApiError:
    headers = {"WWW-Authenticate": "Bearer"}
    return ApiError(401, message, code=code, type="authentication_error", headers=headers)


_described = HTTPBearer(auto_error=False, description="An API key: sk-rft-...")
"""For the OpenAPI page only."""

Reader = Annotated[ApiKey, Depends(requires("read"))]
Writer = Annotated[ApiKey, Depends(requires("write"))]
Admin = Annotated[ApiKey, Depends(requires("admin"))]
