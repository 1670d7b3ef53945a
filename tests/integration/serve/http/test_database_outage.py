"""Requests before, during and after an outage of PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from unittest import TestCase

import pytest
from prometheus_client import generate_latest

from agent_rft.actors.runtime.telemetry.recorder import Recorder
from agent_rft.cluster.records.blobs import FolderBlobs
from agent_rft.serve.routes.file_routes import make_router
from agent_rft.serve.stores.file_store import FileStore
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.migration import open_database
from tests.support.api import client_of
from tests.support.postgres import PostgresServer, postgres_server

NUM_REQUESTS = 30


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


async def test_requests_during_an_outage_are_refused_and_later_ones_succeed(
    server: PostgresServer, tmp_path: Path
) -> None:
    database = open_database(tmp_path, server.url)
    recorder = Recorder()
    recorder.add_source(JobStore(database).live_metrics)
    files = FileStore(database, FolderBlobs(tmp_path / "files"), tmp_path)
    async with client_of([make_router(files)]) as client:

        async def requests() -> list[tuple[int, str | None, str | None]]:
            answers = await asyncio.gather(*(client.get("/v1/files") for _ in range(NUM_REQUESTS)))
            return [
                (a.status_code, a.json().get("error", {}).get("code"), a.headers.get("retry-after")) for a in answers
            ]

        assert await requests() == [(200, None, None)] * NUM_REQUESTS
        server.stop()
        with TestCase().assertLogs("agent_rft.serve") as logged:
            assert await requests() == [(503, "database_unavailable", "5")] * NUM_REQUESTS
        assert len(logged.records) == NUM_REQUESTS
        assert not any(record.exc_info or "\n" in record.getMessage() for record in logged.records)
        assert "agent_rft_api_jobs" not in generate_latest(recorder.registry).decode()
        server.start()
        assert await requests() == [(200, None, None)] * NUM_REQUESTS
    assert 'agent_rft_api_jobs{state="queued"} 0.0' in generate_latest(recorder.registry).decode()
    database.close()
