"""Response models of API keys and console sessions."""

from __future__ import annotations

from typing import Literal

from agent_rft.serve.http.schemas.base import ResponseBody
from agent_rft.serve.stores.key_store import Scope


class ApiKeyBody(ResponseBody):
    """An API key without its secret. Not part of OpenAI's API."""

    id: str
    """Public part of the key."""
    object: Literal["api_key"] = "api_key"
    name: str
    """Name of the key, such as its purpose or user."""
    scopes: list[Scope]
    """Scopes of the key: `read`, `write` (includes read) or `admin` (includes write)."""
    created_at: int
    """Creation time in Unix seconds."""
    expires_at: int | None
    """Expiry time in Unix seconds; null if the key does not expire."""
    revoked_at: int | None
    """Revocation time in Unix seconds; null if the key is not revoked."""
    requests_per_minute: int | None
    """Rate limit of the key; null for the server's default."""
    is_own: bool
    """Whether the request used this key."""


class NewApiKey(ApiKeyBody):
    """A new API key with its secret."""

    key: str
    """The full key, `sk-rft-...`. No other response contains it."""


class ApiKeyList(ResponseBody):
    object: Literal["list"] = "list"
    data: list[ApiKeyBody]
    """All keys, oldest first."""


class SessionKey(ResponseBody):
    """The API key of a console session."""

    id: str
    name: str
    scopes: list[Scope]
    """Scopes of the key: `read`, `write` (includes read) or `admin` (includes write)."""


class ConsoleSession(ResponseBody):
    """A browser session of the console."""

    object: Literal["console.session"] = "console.session"
    key: SessionKey
    """API key that opened the session. The session ends when the key expires or is revoked."""
    read_only: bool
    """Whether this server refuses all changes, regardless of the key's scopes."""


class DeletedSession(ResponseBody):
    object: Literal["console.session"] = "console.session"
    deleted: Literal[True] = True
