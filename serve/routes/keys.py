"""/v1/api_keys: the keys of the server, for admins. A new key is shown once; only its hash is stored."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import Field

from agent_rft.errors import UserError
from agent_rft.serve.http.audit import made
from agent_rft.serve.http.auth import Admin
from agent_rft.serve.http.errors import not_found
from agent_rft.serve.http.schemas.keys import ApiKeyBody, ApiKeyList, NewApiKey
from agent_rft.serve.routes.graders import StrictBody
from agent_rft.serve.stores.keys import MAX_NAME_CHARS, KeyStore, Scope

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

    @router.get("")
    def list_keys(key: Admin) -> ApiKeyList:
        """List all keys with revoked and expired ones, oldest first: not a part of OpenAI's API."""
        return ApiKeyList(data=[ApiKeyBody(**asdict(found), is_own=found.id == key.id) for found in keys.list()])

    @router.post("")
    def create(request: Request, body: KeyRequest, key: Admin) -> NewApiKey:
        """Create a key; the response is the only one that has it."""
        new, token = keys.create(body.name, body.scopes, body.requests_per_minute, body.expires_after_s)
        made(request, new.id)
        return NewApiKey(**asdict(new), is_own=False, key=token)

    @router.delete("/{key_id}")
    def revoke(key_id: Annotated[str, Path(max_length=100)], key: Admin) -> ApiKeyBody:
        """Revoke a key: within a second, requests with it are refused."""
        try:
            revoked = keys.revoke(key_id)
        except UserError:
            raise not_found("API key", key_id, "key_id") from None
        return ApiKeyBody(**asdict(revoked), is_own=revoked.id == key.id)

    return router
