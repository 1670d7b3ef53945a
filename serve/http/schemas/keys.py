"""API keys, and the sessions that browsers open with them."""

from __future__ import annotations

from typing import Literal

from agent_rft.serve.http.schemas.base import ResponseBody
from agent_rft.serve.stores.keys import Scope


class ApiKeyBody(ResponseBody):
    """An API key without its secret: an extension of OpenAI's API."""

    id: str
    """The part of the key that is not secret."""
    object: Literal["api_key"] = "api_key"
    name: str
    """Who or what it is for."""
    scopes: list[Scope]
    """`read`, `write` or `admin`; each includes those before it."""
    created_at: int
    """Unix time in seconds."""
    expires_at: int | None
    """Unix time in seconds; null: it works until it is revoked."""
    revoked_at: int | None
    """Unix time in seconds; null: it is not revoked."""
    requests_per_minute: int | None
    """Its rate limit; null: the server's."""
    is_own: bool
    """Whether the request was made with it."""


class NewApiKey(ApiKeyBody):
    key: str
    """The key itself, `sk-rft-...`; no other response has it."""


class ApiKeyList(ResponseBody):
    object: Literal["list"] = "list"
    data: list[ApiKeyBody]
    """All keys, oldest first."""


class SessionKey(ResponseBody):
    id: str
    name: str
    scopes: list[Scope]
    """What the key may do; each scope includes those before it: read, write, admin."""


class ConsoleSession(ResponseBody):
    """What a browser's session may do."""

    object: Literal["console.session"] = "console.session"
    key: SessionKey
    """The API key that opened the session, and with which it ends."""
    read_only: bool
    """Whether nothing can be created or changed here, whatever the key's scopes are."""


class DeletedSession(ResponseBody):
    object: Literal["console.session"] = "console.session"
    deleted: Literal[True] = True
