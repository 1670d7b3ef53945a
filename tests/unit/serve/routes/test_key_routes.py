"""API keys through the API: admins list, create and revoke them; a token is shown once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_rft.serve.routes.key_routes import make_router
from agent_rft.serve.stores.key_store import KeyStore
from tests.support.api import body_of, client_of
from tests.support.jobs import database_with_tables, fixture_of

URL = "/v1/api_keys"


class Server:
    def __init__(self, folder: Path) -> None:
        self.database = database_with_tables(folder)
        self.now = 1_000.0
        self.keys = KeyStore(self.database, lambda: self.now)
        self.routers = [make_router(self.keys)]
        self.http = client_of(self.routers)

    async def create(self, status: int = 200, **body: Any) -> dict[str, Any]:
        return body_of(await self.http.post(URL, json=body), status)


server = fixture_of(Server)


async def test_a_new_key_works_and_only_the_first_answer_has_it(server: Server) -> None:
    made = await server.create(name="ci", scopes=["write"], expires_after_s=86_400, requests_per_minute=60)
    found = server.keys.find(made.pop("key"))
    assert found is not None and (found.id, found.scopes, found.expires_at) == (made["id"], ("write",), 87_400)
    listed = (await server.http.get(URL)).json()
    assert listed["data"] == [made] and "sk-rft" not in str(listed)
    assert (made["is_own"], made["revoked_at"], made["requests_per_minute"]) == (False, None, 60)


async def test_a_revoked_key_works_no_longer(server: Server) -> None:
    made = await server.create(name="ci", scopes=["read"])
    for _ in range(2):
        answer = (await server.http.delete(f"{URL}/{made['id']}")).json()
        assert answer["id"] == made["id"] and answer["revoked_at"] == 1_000
    assert server.keys.find(made["key"]) is None
    missing = await server.http.delete(f"{URL}/none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    "body",
    [
        {"name": "", "scopes": ["read"]},
        {"name": "a\nb", "scopes": ["read"]},
        {"name": "a", "scopes": []},
        {"name": "a", "scopes": ["root"]},
        {"name": "a", "scopes": ["read"], "expires_after_s": 1},
        {"name": "a", "scopes": ["read"], "requests_per_minute": 0},
        {"name": "a", "scopes": ["read"], "id": "x"},
    ],
)
async def test_a_bad_request_makes_no_key(server: Server, body: dict[str, Any]) -> None:
    assert (await server.create(400, **body))["error"]["type"] == "invalid_request_error"
    assert server.keys.list() == []


@pytest.mark.parametrize("token", ["sk-rft-read", "sk-rft-write"])
async def test_only_admins_see_and_change_keys(server: Server, token: str) -> None:
    other = server.keys.create("other", ["read"])[0]
    async with client_of(server.routers, token) as http:
        asked: list[httpx.Response] = [
            await http.get(URL),
            await http.post(URL, json={"name": "a", "scopes": ["admin"]}),
            await http.delete(f"{URL}/{other.id}"),
        ]
    assert [answer.status_code for answer in asked] == [403, 403, 403]
    assert [(key.id, key.revoked_at) for key in server.keys.list()] == [(other.id, None)]
