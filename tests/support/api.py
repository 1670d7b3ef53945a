"""Clients of an app in this process, without a network, for tests of routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import openai
from fastapi import APIRouter
from fastapi.testclient import TestClient
from starlette.types import Receive, Send

from agent_rft.serve.http.api_app import create_app
from agent_rft.serve.stores.key_store import ApiKey, Scope
from agent_rft.spec.operator.operator_config import ServerLimits

TOKEN = "sk-rft-of-a-test"


class FakeKeys:
    """API keys by their text: `sk-rft-read`, `sk-rft-write`, and TOKEN, an admin's."""

    def __init__(self) -> None:
        scopes: dict[str, Scope] = {"sk-rft-read": "read", "sk-rft-write": "write", TOKEN: "admin"}
        self.keys = {token: ApiKey(token, token, (scope,), 0) for token, scope in scopes.items()}

    def find(self, token: str) -> ApiKey | None:
        return self.keys.get(token)


def client_of(
    routers: Sequence[APIRouter], token: str = TOKEN, limits: ServerLimits | None = None, **options: Any
) -> httpx.AsyncClient:
    """Returns a client of an app with these routers; paths start with /v1."""
    app = create_app(routers, FakeKeys(), limits=limits or ServerLimits(), **options)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server", headers=headers)


def sync_client_of(routers: Sequence[APIRouter]) -> TestClient:
    """The same for the command line; paths begin after /v1."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return TestClient(create_app(routers, FakeKeys()), base_url="http://server/v1", headers=headers)


def body_of(answer: httpx.Response, status: int = 200) -> dict[str, Any]:
    """The JSON object that was answered with this status."""
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def by_hand(client: httpx.AsyncClient, request: httpx.Request, receive: Receive, send: Send) -> None:
    """One request to the client's app by ASGI messages: clients cannot leave in the middle of one."""
    headers = [(name.lower(), value) for name, value in request.headers.raw]
    url = {"path": request.url.path, "query_string": request.url.query}
    transport = client._transport
    assert isinstance(transport, httpx.ASGITransport)
    await transport.app({"type": "http", "method": request.method, "headers": headers} | url, receive, send)


def openai_of(client: httpx.AsyncClient, token: str = TOKEN) -> openai.AsyncOpenAI:
    """Returns the official SDK on the same app, without retries: a test sees the first answer."""
    return openai.AsyncOpenAI(api_key=token, base_url="http://server/v1", http_client=client, max_retries=0)
