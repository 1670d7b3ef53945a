"""The whole API as one app: its background tasks, the locations of its state, and its port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from pydantic import ValidationError
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary

from agent_rft.errors import UserError
from agent_rft.serve.deployment import build, make_app, make_lifespan
from agent_rft.serve.host.listener import reserve_port, serve_app
from agent_rft.serve.host.server_state import ServerState, StateLocations
from agent_rft.serve.host.services import Services
from agent_rft.serve.http.api_app import create_app
from agent_rft.serve.http.auth import KEY_CACHE_S
from agent_rft.serve.stores.database import Database
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from tests.support.api import TOKEN, FakeKeys, openai_of


@pytest.fixture
def state(tmp_path: Path) -> Iterator[ServerState]:
    state = ServerState(StateLocations(tmp_path), DEFAULT_CONFIG)
    yield state
    state.close()


def app(state: ServerState) -> FastAPI:
    """Returns the whole API; tests do not enter its lifespan, which manages jobs and models."""
    nothing: Any = None
    return make_app(state, Services(state, DEFAULT_CONFIG, nothing, nothing), DEFAULT_CONFIG)


async def test_the_first_key_has_access_to_the_whole_api_until_it_is_revoked(state: ServerState) -> None:
    token = state.create_first_key()
    assert token is not None
    transport = httpx.ASGITransport(app(state))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        made = await openai_of(client, token).files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")
        assert [file.id async for file in openai_of(client, token).files.list()] == [made.id]
        state.keys.revoke(token.split("-")[2])
        await asyncio.sleep(KEY_CACHE_S)
        assert (await client.get("/v1/files", headers={"Authorization": f"Bearer {token}"})).status_code == 401


def test_the_openapi_page_describes_every_route_with_its_errors(state: ServerState) -> None:
    described = app(state).openapi()
    upload = described["paths"]["/v1/files"]["post"]
    assert set(upload["requestBody"]["content"]["multipart/form-data"]["schema"]["required"]) == {"file", "purpose"}
    for path, routes in described["paths"].items():
        for route in routes.values():
            assert path.startswith("/v1/") and "4XX" in route["responses"] and "422" not in route["responses"]
            assert route["security"] == [{"HTTPBearer": []}]


def test_the_openapi_page_says_what_keys_mean(state: ServerState) -> None:
    page = app(state).openapi()
    schemas = page["components"]["schemas"]
    create = page["paths"]["/v1/fine_tuning/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    settings = [schemas[name] for name in ("RolloutLimits", "ToolSpec", "EndpointGrader", "ErrorDetail")]
    for model in (create, *settings):
        assert [key for key, value in model["properties"].items() if "description" not in value] == []
    assert "Unix seconds" in schemas["Job"]["properties"]["finished_at"]["description"]
    assert "log-probability" in schemas["ChatRequest"]["properties"]["logprobs"]["description"]
    assert "encrypted_content" in schemas["ResponsesRequest"]["properties"]["include"]["description"]


async def test_background_tasks_end_with_the_app(state: ServerState) -> None:
    ended, started = asyncio.Event(), asyncio.Event()

    async def works() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    closed: list[bool] = []
    async with make_lifespan([works], lambda: closed.append(ended.is_set()))(FastAPI()):
        async with asyncio.timeout(10):
            await started.wait()
        assert not ended.is_set()
    assert closed == [True], "stores are closed after the tasks that use them have ended"


def slow_app(asked: asyncio.Event, answers: asyncio.Event, cancelled: asyncio.Event) -> FastAPI:
    """Returns an app whose `/v1/slow` sets `asked`, waits for `answers`, and sets `cancelled` if it is cancelled."""
    routes = APIRouter()

    @routes.post("/slow")
    async def slow() -> str:
        asked.set()
        try:
            await answers.wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "at last"

    return create_app([routes], FakeKeys())


def client_at(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {TOKEN}"})


async def test_an_app_listens_at_a_reserved_port_and_finishes_its_requests_before_it_ends() -> None:
    asked, answers, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
    app = slow_app(asked, answers, cancelled)
    with reserve_port("127.0.0.1", 0) as port:
        async with client_at(port) as client, asyncio.timeout(20):
            async with serve_app(app, "127.0.0.1", port):
                asking = asyncio.create_task(client.post("/v1/slow"))
                await asked.wait()
                asyncio.get_running_loop().call_later(0.05, answers.set)  # while it is stopping
            assert answers.is_set()
            answer = await asking
            assert answer.json() == "at last" and answer.headers["x-request-id"].startswith("req_")
            with pytest.raises(httpx.ConnectError):
                await client.get("/health")
        assert not cancelled.is_set()
    with reserve_port("127.0.0.1", port):  # by the next server, while connections of the last one are still closing
        pass


async def test_a_request_is_cancelled_when_its_client_disconnects() -> None:
    asked, answers, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
    app = slow_app(asked, answers, cancelled)
    with reserve_port("127.0.0.1", 0) as port:
        async with client_at(port) as client, serve_app(app, "127.0.0.1", port), asyncio.timeout(20):
            asking = asyncio.create_task(client.post("/v1/slow"))
            await asked.wait()
            asking.cancel()
            await cancelled.wait()
            answers.set()
            assert (await client.post("/v1/slow")).json() == "at last"


def test_a_port_in_use_is_reported_and_a_reserved_port_can_only_be_shared() -> None:
    with reserve_port("127.0.0.1", 0) as port, socket.socket() as proxy:
        with pytest.raises(OSError, match="Address already in use"):
            socket.create_server(("127.0.0.1", port))
        proxy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        proxy.bind(("127.0.0.1", port))
        proxy.listen()
        with (
            pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"),
            reserve_port("127.0.0.1", port),
        ):
            pass
        socket.create_connection(("127.0.0.1", port), 1).close()


def test_an_unknown_host_is_reported() -> None:
    with pytest.raises(UserError, match=r"cannot listen on nowhere\.invalid:1"), reserve_port("nowhere.invalid", 1):
        pass


def test_state_locations_come_from_the_environment_or_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    assert StateLocations.load(tmp_path, {}) == StateLocations(tmp_path)
    saved = StateLocations(tmp_path, "postgresql://user:hunter2@host/name", "s3://bucket")
    saved.save()
    assert StateLocations.load(tmp_path, {}) == saved
    assert (tmp_path / "places.json").stat().st_mode & 0o777 == 0o600
    StateLocations(tmp_path).save()
    assert StateLocations.load(tmp_path, {}) == StateLocations(tmp_path)
    environment = {"AGENT_RFT_DATABASE": "postgresql://other\n", "AGENT_RFT_FILES": "gs://bucket\n"}
    assert StateLocations.load(tmp_path, environment) == StateLocations(tmp_path, "postgresql://other", "gs://bucket")


async def test_of_several_servers_on_one_database_one_creates_the_first_key_and_one_at_a_time_holds_the_models_lock(
    any_database: Database, tmp_path: Path
) -> None:
    if any_database.engine.dialect.name == "sqlite":
        several = [ServerState(StateLocations(tmp_path), DEFAULT_CONFIG)]
    else:
        locations = [StateLocations(tmp_path / name, any_database.url) for name in "abc"]
        several = [ServerState(each, DEFAULT_CONFIG) for each in locations]
    tokens = await asyncio.gather(*(asyncio.to_thread(state.create_first_key) for state in several))
    assert len([token for token in tokens if token is not None]) == 1

    inside = [0, 0]

    async def hold(state: ServerState) -> None:
        async with state.lock_models():
            inside[0] += 1
            inside[1] = max(inside)
            await asyncio.sleep(0.05)
            inside[0] -= 1

    await asyncio.gather(*map(hold, several))
    assert inside == [0, 1]
    for state in several:
        state.close()


def test_an_application_refuses_unknown_arguments_and_contains_no_secrets(tmp_path: Path) -> None:
    def deployed(**args: Any) -> Any:
        """Builds the application as Ray Serve does from a configuration's arguments."""
        return call_user_app_builder_with_args_if_necessary(build, args)._bound_deployment

    with pytest.raises(ValidationError, match="database"):
        deployed(folder="state", database="postgresql://user:hunter2@host/name")
    assert deployed(folder=str(tmp_path)).num_replicas == 1
    with pytest.raises(UserError, match="replicas: 2 requires PostgreSQL"):
        deployed(folder=str(tmp_path), replicas=2)
    StateLocations(tmp_path, "postgresql://user:hunter2@host/name").save()
    deployment = deployed(folder=str(tmp_path), replicas=2)
    assert deployment.num_replicas == 2
    assert "hunter2" not in repr(deployment.init_args)
