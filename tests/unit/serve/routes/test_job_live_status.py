"""GET /v1/fine_tuning/jobs/{id}/now: what the driver wrote last, for the owner and admins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.serve.routes.job_live_status import make_router
from tests.support.api import client_of
from tests.support.jobs import FolderJobs, fixture_of


class Server(FolderJobs):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.routers = [make_router(self.store, self.runs, lambda: 1_004.5)]
        self.job = self.new(owner="sk-rft-write").id

    def write(self, **state: Any) -> None:
        run = RunFolder(self.runs / self.job)
        run.path.mkdir(parents=True)
        run.status_file.write_text(json.dumps({"at": 1_000.0, "engines": [], "actors": [], "endpoints": []} | state))

    async def get(self, token: str = "sk-rft-write", job: str = "") -> httpx.Response:
        async with client_of(self.routers, token) as client:
            return await client.get(f"/v1/fine_tuning/jobs/{job or self.job}/live_status")


server = fixture_of(Server)


async def test_it_is_what_the_driver_wrote_and_how_old_that_is(server: Server) -> None:
    engine = {"name": "engine-0", "state": "ready", "rollouts": 3}
    server.write(engines=[engine])
    found = (await server.get()).json()
    assert found["engines"] == [engine] and found["age_s"] == 4.5
    assert (found["fine_tuning_job_id"], found["status"]) == (server.job, "validating_files")


async def test_a_job_without_processes_has_empty_lists(server: Server) -> None:
    found = (await server.get()).json()
    assert (found["age_s"], found["engines"], found["actors"], found["endpoints"]) == (None, [], [], [])


async def test_only_the_owner_and_admins_see_it(server: Server) -> None:
    server.write()
    assert (await server.get("sk-rft-of-a-test")).status_code == 200
    assert (await server.get("sk-rft-read")).status_code == 404
    assert (await server.get(job="ftjob-none")).status_code == 404
