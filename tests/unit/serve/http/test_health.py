"""`/health` answers while the process lives, `/health/ready` names the dependencies that are missing."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any
from unittest import TestCase

import httpx

from agent_rft.serve.deployment import ApiReplica, make_app
from agent_rft.serve.host.server_state import ServerState, StateLocations
from agent_rft.serve.host.services import Services
from agent_rft.serve.http.api_app import DependencyChecks
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from tests.support.api import client_of


def fail() -> None:
    raise ConnectionError("password=hunter2 was refused")


async def test_server_with_its_database_and_files_is_ready_and_without_them_is_not(tmp_path: Path) -> None:
    state = ServerState(StateLocations(tmp_path), DEFAULT_CONFIG)
    nothing: Any = None
    app = make_app(state, Services(state, DEFAULT_CONFIG, nothing, nothing), DEFAULT_CONFIG)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
        shutil.rmtree(tmp_path / "files")
        with state.database.engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE alembic_version")
        missing = await client.get("/health/ready")
        live = await client.get("/health")
    state.close()
    assert missing.status_code == 503
    assert missing.json() == {"status": "not_ready", "missing": ["database", "file_store"]}
    assert (live.status_code, live.json()) == (200, {"status": "ok"})


async def test_inner_errors_are_in_the_log_only_and_by_type() -> None:
    async with client_of([], token="", checks={"database": fail, "file_store": lambda: None}) as client:
        with TestCase().assertLogs("agent_rft.serve") as logged:
            answer = await client.get("/health/ready")
    assert (answer.status_code, answer.json()["missing"]) == (503, ["database"])
    assert "Connection" not in answer.text
    (line,) = logged.output
    assert "missing: database (ConnectionError)" in line and "hunter2" not in line


async def test_check_that_hangs_is_missing_in_time_and_occupies_one_thread() -> None:
    answered, calls = threading.Event(), []

    def hang() -> None:
        calls.append(1)
        answered.wait(20)

    dependencies = DependencyChecks({"database": hang, "file_store": lambda: None}, timeout_s=0.05)
    found = await asyncio.gather(*(dependencies.find_unavailable() for _ in range(20)))
    assert [list(missing) for missing in found] == [["database"]] * 20 and len(calls) == 1
    answered.set()
    async with asyncio.timeout(10):
        while await dependencies.find_unavailable():
            pass


def test_ray_serve_keeps_replicas_whose_database_is_away() -> None:
    assert not hasattr(ApiReplica, "check_health"), "Ray Serve would replace such a replica, which repairs nothing"
