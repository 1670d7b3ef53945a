"""Which requests the audit log gets, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import TestCase

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from sqlalchemy.exc import OperationalError

from agent_rft.cluster.records.blobs import FolderBlobs
from agent_rft.serve.host.server_state import ServerState, StateLocations
from agent_rft.serve.host.services import Services
from agent_rft.serve.http.audit_actions import ACTIONS
from agent_rft.serve.http.auth import Writer
from agent_rft.serve.routes.file_routes import make_router
from agent_rft.serve.stores.audit_log import Outcome
from agent_rft.serve.stores.database import Database, DatabaseError
from agent_rft.serve.stores.file_store import FileStore
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from tests.support.api import client_of

CHANGES_NOTHING = frozenset(
    {
        "/v1/chat/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/fine_tuning/alpha/graders/validate",
        "/v1/fine_tuning/alpha/graders/run",
        "/v1/fine_tuning/alpha/tool/run",
        "/v1/fine_tuning/jobs/check",
        "/v1/fine_tuning/jobs/{job_id}/tool/run",
    }
)
"""POST routes that leave nothing behind; the access log has them."""
FORM: Any = {"files": {"file": ("a.jsonl", b"{}")}, "data": {"purpose": "fine-tune"}}


class FullDisk:
    """An audit log whose database fails."""

    def append(
        self,
        actor: str,
        action: str,
        object: str | None = None,
        *,
        request_id: str | None = None,
        outcome: Outcome = "done",
        status: int | None = None,
        client_request_id: str | None = None,
        countable: bool = False,
    ) -> None:
        raise DatabaseError("disk full")


def test_each_route_that_changes_something_is_recorded(tmp_path: Path) -> None:
    state = ServerState(StateLocations(tmp_path), DEFAULT_CONFIG)
    nothing: Any = None
    routers = Services(state, DEFAULT_CONFIG, nothing, nothing).routers
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    found = {(method, f"/v1{route.path}") for route in routes for method in route.methods if method != "GET"}
    left_out = {("POST", path) for path in CHANGES_NOTHING}
    assert found == ACTIONS.keys() | left_out and not ACTIONS.keys() & left_out
    state.close()


async def test_what_was_done_is_answered_although_the_audit_log_fails(any_database: Database, tmp_path: Path) -> None:
    files = FileStore(any_database, FolderBlobs(tmp_path / "files"), tmp_path)
    async with client_of([make_router(files)], audit=FullDisk()) as client:
        made = await client.post("/v1/files", **FORM)
        assert made.status_code == 200 and files.get(made.json()["id"]).owner == "sk-rft-of-a-test"


class Away:
    """An audit log, or the store of a route, whose database is away."""

    def append(self, *entry: object, **more: object) -> None:
        raise OperationalError("INSERT secret", {}, Exception("connection refused"))


@pytest.mark.parametrize("away", [False, True])
async def test_entry_that_an_outage_keeps_out_of_the_audit_log_has_one_line_in_the_server_log(
    away: bool,
) -> None:
    routes = APIRouter()

    @routes.post("/files")
    async def create(key: Writer) -> None:
        if away:
            Away().append()

    async with client_of([routes], audit=Away()) as client:
        with TestCase().assertLogs("agent_rft.serve") as logged:
            answer = await client.post("/v1/files")
    assert answer.status_code == (503 if away else 200)
    (record,) = logged.records
    assert "file.create is missing from the audit log" in record.getMessage() and record.exc_info is None
