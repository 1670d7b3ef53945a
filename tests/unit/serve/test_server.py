"""The whole API as one app, what runs beside it, and the port."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from serve.ray_engine import EngineResources
from serve.server import app_of, beside, listen
from serve.services import Services
from serve.state import Places, ServerState
from tests.unit.serve.world import openai_of
from trainer.errors import UserError
from trainer.operator import NOTHING_ALLOWED


@pytest.fixture
def state(tmp_path: Path) -> Iterator[ServerState]:
    state = ServerState(Places(tmp_path), NOTHING_ALLOWED)
    yield state
    state.close()


def app(state: ServerState) -> FastAPI:
    """The whole API; its lifespan, in which jobs are looked after, is not entered."""
    services = Services(
        state, Places(state.folder), NOTHING_ALLOWED, None, None, "http://127.0.0.1:1", EngineResources()
    )
    return app_of(state, services, NOTHING_ALLOWED)


async def test_the_first_key_opens_the_whole_api(state: ServerState) -> None:
    token = state.first_key()
    assert token is not None
    transport = httpx.ASGITransport(app(state))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        made = await openai_of(client, token).files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")
        assert [file.id async for file in openai_of(client, token).files.list()] == [made.id]
        state.keys.revoke(token.split("-")[2])
        assert (await client.get("/v1/files", headers={"Authorization": f"Bearer {token}"})).status_code == 401


def test_the_openapi_page_tells_of_every_route_and_its_errors(state: ServerState) -> None:
    described = app(state).openapi()
    upload = described["paths"]["/v1/files"]["post"]
    assert set(upload["requestBody"]["content"]["multipart/form-data"]["schema"]["required"]) == {"file", "purpose"}
    for path, routes in described["paths"].items():
        for route in routes.values():
            assert path.startswith("/v1/") and "4XX" in route["responses"] and "422" not in route["responses"]
            assert route["security"] == [{"HTTPBearer": []}]


async def test_what_runs_beside_an_app_ends_with_it(state: ServerState) -> None:
    ended, begun = asyncio.Event(), asyncio.Event()

    async def works() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with beside([works])(FastAPI()):
        async with asyncio.timeout(10):
            await begun.wait()
        assert not ended.is_set()
    assert ended.is_set()


def test_a_port_in_use_is_one_clear_message() -> None:
    first = listen("127.0.0.1", 0)
    port = first.getsockname()[1]
    with pytest.raises(UserError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use"):
        listen("127.0.0.1", port)
    first.close()


def test_a_host_that_is_none_is_one_clear_message() -> None:
    with pytest.raises(UserError, match=r"cannot listen at nowhere\.invalid:1"):
        listen("nowhere.invalid", 1)
