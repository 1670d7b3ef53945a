"""/v1/api_keys: the keys of the server, for admins. A new key is shown once; only its hash is stored."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import Field

from cluster.stores.keys import MAX_NAME_CHARS, ApiKey, KeyStore, Scope
from serve.http.audit import made
from serve.http.auth import Admin
from serve.http.errors import not_found
from serve.http.schemas.base import answers
from serve.http.schemas.keys import ApiKeyBody, ApiKeyList, NewApiKey
from serve.routes.graders import StrictBody
from trainer.errors import UserError

MIN_LIFE_S, MAX_LIFE_S = 3_600, 10 * 365 * 86_400
MAX_REQUESTS_PER_MINUTE = 1_000_000


class KeyRequest(StrictBody):
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    """Who or what the key is for."""
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=3)]
    """`read`, `write` (includes read; changes only what the same key made) or `admin` (everything)."""
    expires_after_s: Annotated[int, Field(ge=MIN_LIFE_S, le=MAX_LIFE_S)] | None = None
    """Seconds that it works; by default until it is revoked."""
    requests_per_minute: Annotated[int, Field(ge=1, le=MAX_REQUESTS_PER_MINUTE)] | None = None
    """Rate limit; by default the server's."""


def make_router(keys: KeyStore) -> APIRouter:
    """Returns the routes: plain functions, so that they run in threads, where database calls may block."""
    router = APIRouter(prefix="/api_keys", tags=["keys"])

    @router.get("", response_model=None, responses=answers(ApiKeyList))
    def list_keys(key: Admin) -> dict[str, Any]:
        """List all keys with revoked and expired ones, oldest first: not a part of OpenAI's API."""
        return {"object": "list", "data": [key_object(found, key) for found in keys.list()]}

    @router.post("", response_model=None, responses=answers(NewApiKey))
    def create(request: Request, body: KeyRequest, key: Admin) -> dict[str, Any]:
        """Create a key; the response is the only one that has it."""
        new, token = keys.create(body.name, body.scopes, body.requests_per_minute, body.expires_after_s)
        made(request, new.id)
        return key_object(new, key) | {"key": token}

    @router.delete("/{key_id}", response_model=None, responses=answers(ApiKeyBody))
    def revoke(key_id: Annotated[str, Path(max_length=100)], key: Admin) -> dict[str, Any]:
        """Revoke a key: within a second, requests with it are refused."""
        try:
            return key_object(keys.revoke(key_id), key)
        except UserError:
            raise not_found("API key", key_id, "key_id") from None

    return router


def key_object(found: ApiKey, own: ApiKey) -> dict[str, Any]:
    """Returns a key in the wire form, without its secret; `own` is the request's."""
    return {
        "id": found.id,
        "object": "api_key",
        "name": found.name,
        "scopes": list(found.scopes),
        "created_at": found.created_at,
        "expires_at": found.expires_at,
        "revoked_at": found.revoked_at,
        "requests_per_minute": found.requests_per_minute,
        "is_own": found.id == own.id,
    }
