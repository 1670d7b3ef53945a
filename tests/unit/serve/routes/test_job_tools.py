"""One call of a job's own tool: with its headers and signature, which nobody sees, for those who may change the job."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_rft.errors import UnsealFailed
from agent_rft.serve.http.grader_trials import TrialFactory
from agent_rft.serve.jobs.job_service import JobService
from agent_rft.serve.routes import job_routes, job_tools
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from tests.support.api import TOKEN, client_of
from tests.support.bad_requests import SECRET, Bad, check_refused
from tests.support.builders import raw_job
from tests.support.fakes_http import LOCAL, FakeEndpoint, MovableLoop, hangs, in_movable_time, says, until
from tests.support.jobs import BODY, NO_LOGS, FolderJobs, KnownFiles, KnownModels, ReversingBox, fixture_of

JOBS = "/v1/fine_tuning/jobs"
SEARCH: dict[str, Any] = {"json": {"name": "search"}}


class OtherMaster(ReversingBox):
    """A box with another master secret than that of the jobs."""

    def open(self, sealed: str) -> str:
        raise UnsealFailed("the master secret is another one")


class Server(FolderJobs):
    """Jobs of the key `sk-rft-write`."""

    def __init__(self, folder: Path, box: ReversingBox) -> None:
        super().__init__(folder)
        self.service = JobService(self.store, KnownModels(), KnownFiles(), box, LOCAL, NO_LOGS)
        self.routers = [job_routes.make_router(self.service), job_tools.make_router(self.service, TrialFactory(LOCAL))]

    async def job(self, *tools: dict[str, Any]) -> str:
        async with client_of(self.routers, "sk-rft-write") as client:
            body = raw_job(tools=list(tools)) | {"model": "gpt-5", "training_file": "file-1"}
            return str((await client.post(JOBS, json=body)).json()["id"])

    async def run(self, job: str, token: str = "sk-rft-write", **body: Any) -> httpx.Response:
        async with client_of(self.routers, token) as client:
            return await client.post(f"{JOBS}/{job}/tool/run", json=body)


server = fixture_of(lambda folder: Server(folder, ReversingBox()))


async def test_a_tool_is_called_with_the_jobs_headers_which_the_answer_does_not_show(server: Server) -> None:
    async with FakeEndpoint(says({"output": "2 open invoices"})) as endpoint:
        tool = {"name": "search", "server_url": endpoint.url, "headers": {"Authorization": f"Bearer {SECRET}"}}
        job = await server.job(tool)
        call = {"name": "search", "arguments": '{"query": "invoices"}', "trace_id": "trace_1", "item": {"row": 1}}
        answer = await server.run(job, **call)
        (received,) = endpoint.received
    assert answer.json()["output"] == "2 open invoices" and answer.json()["error"] is None
    assert received.headers["Authorization"] == f"Bearer {SECRET}" and SECRET not in answer.text
    assert {name: received.body[name] for name in call} == call


def test_a_trial_call_ends_after_ten_minutes_even_if_the_jobs_calls_may_take_hours(server: Server) -> None:
    async def test(loop: MovableLoop) -> None:
        async with FakeEndpoint(hangs) as endpoint:
            job = await server.job({"name": "search", "server_url": endpoint.url, "timeout_s": 18_000})
            answer = asyncio.create_task(server.run(job, name="search"))
            await until(lambda: endpoint.open_now == 1)
            loop.move(590)
            await asyncio.sleep(0.01)
            assert not answer.done()
            loop.move(11)
            refused = await answer
        assert refused.status_code == 424 and "no answer by the deadline of 600 s" in refused.text
        assert "A trial call may take at most 600 s" in refused.text

    in_movable_time(test)


async def test_a_tool_that_the_job_does_not_have_is_answered_as_the_model_would_see_it(server: Server) -> None:
    job = await server.job({"name": "search", "server_url": "https://tools.example/search"})
    answer = (await server.run(job, name="serch")).json()
    assert answer["error"] == "unknown_tool" and "The tools are: search." in answer["output"]


async def test_only_those_who_may_change_the_job_may_call_its_tools(server: Server) -> None:
    async with FakeEndpoint(says({"output": "1"})) as endpoint:
        job = await server.job({"name": "search", "server_url": endpoint.url})
        tried = [await server.run(job, token, name="search") for token in ("sk-rft-read", "sk-rft-write", TOKEN)]
        async with client_of(server.routers, TOKEN) as admin:
            of_admin = (await admin.post(JOBS, json=BODY)).json()["id"]
        other = await server.run(of_admin, name="search")
    assert [answer.status_code for answer in tried] == [403, 200, 200]
    assert other.status_code == 403 and "Only admins and the owner of this job can change it" in other.text


async def test_bad_requests_are_refused(server: Server, subtests: pytest.Subtests) -> None:
    none = await server.job()
    some = await server.job({"name": "search", "server_url": "http://127.0.0.1:9/"})
    server.routers[1] = job_tools.make_router(server.service, TrialFactory(DEFAULT_CONFIG))
    async with client_of(server.routers, "sk-rft-write") as client:
        for bad in (
            Bad("an unknown job", "POST", f"{JOBS}/ftjob-x/tool/run", "fine_tuning_job_id", 404, SEARCH),
            Bad("a job without tools", "POST", f"{JOBS}/{none}/tool/run", None, 400, SEARCH),
            Bad("no name", "POST", f"{JOBS}/{some}/tool/run", "name", 400, {"json": {}}),
            Bad("a forbidden address", "POST", f"{JOBS}/{some}/tool/run", None, 400, SEARCH),
        ):
            with subtests.test(bad.what):
                await check_refused(bad, client)


async def test_a_job_that_this_server_cannot_open_is_refused_without_its_secrets(tmp_path: Path) -> None:
    server = Server(tmp_path, OtherMaster())
    job = await server.job({"name": "search", "server_url": "https://tools.example/search"})
    answer = await server.run(job, name="search")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "fine_tuning_job_id"
    server.database.close()
