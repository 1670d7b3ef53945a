"""/v1/api_keys: the server's API keys, for admins. A new key is returned only once, and only its hash is stored."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import Field

from agent_rft.errors import UserError
from agent_rft.serve.http.audit_actions import set_created_id
from agent_rft.serve.http.auth import Admin
from agent_rft.serve.http.error_responses import make_not_found_error
from agent_rft.serve.http.schemas.key_schemas import ApiKeyBody, ApiKeyList, NewApiKey
from agent_rft.serve.routes.trial_routes import StrictBody
from agent_rft.serve.stores.key_store import MAX_NAME_CHARS, KeyStore, Scope

MIN_LIFE_S, MAX_LIFE_S = 3_600, 10 * 365 * 86_400
MAX_REQUESTS_PER_MINUTE = 1_000_000


class KeyRequest(StrictBody):
    """Settings of a new API key."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    """Name that describes the key's purpose or user."""
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=3)]
    """`read`, `write` (can read, and can change the key's own objects) or `admin` (can do everything)."""
    expires_after_s: Annotated[int, Field(ge=MIN_LIFE_S, le=MAX_LIFE_S)] | None = None
    """Seconds until the key expires; by default it does not expire."""
    requests_per_minute: Annotated[int, Field(ge=1, le=MAX_REQUESTS_PER_MINUTE)] | None = None
    """Rate limit; by default the server's limit."""


def make_router(keys: KeyStore) -> APIRouter:
    """Return the router. Its routes are not `async`, so FastAPI runs them in threads, where they may block."""
    router = APIRouter(prefix="/api_keys", tags=["keys"])

    @router.get("")
    def list_keys(key: Admin) -> ApiKeyList:
        """List all API keys, including revoked and expired ones, oldest first. Not part of OpenAI's API."""
        return ApiKeyList(data=[ApiKeyBody(**asdict(found), is_own=found.id == key.id) for found in keys.list()])

    @router.post("")
    def create_key(request: Request, body: KeyRequest, key: Admin) -> NewApiKey:
        """Create an API key. Only this response contains the key. Not part of OpenAI's API."""
        new, token = keys.create(body.name, body.scopes, body.requests_per_minute, body.expires_after_s)
        set_created_id(request, new.id)
        return NewApiKey(**asdict(new), is_own=False, key=token)

    @router.delete("/{key_id}")
    def revoke_key(key_id: Annotated[str, Path(max_length=100)], key: Admin) -> ApiKeyBody:
        """Revoke an API key. It stops working within a second. Not part of OpenAI's API."""
        try:
            revoked = keys.revoke(key_id)
        except UserError:
            raise make_not_found_error("API key", key_id, "key_id") from None
        return ApiKeyBody(**asdict(revoked), is_own=revoked.id == key.id)

    return router
