"""POST /v1/fine_tuning/jobs/check: the form first, then what a process finds; nothing is created."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agent_rft.errors import Problem, RftError
from agent_rft.serve.jobs.processes.request_check import CheckRequest
from agent_rft.serve.routes import job_check, job_routes
from tests.support.api import body_of, client_of
from tests.support.bad_requests import SECRET
from tests.support.jobs import BODY, FolderJobs, fixture_of, job_service

URL = "/v1/fine_tuning/jobs/check"
ROW = Problem("broken_json", "training_file", "is not JSON", "write JSON", None, 3, "3, 5")


class FakeChecker:
    """Finds `problems`, once `hold` is set."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.error: RftError | None = None
        self.drafts: list[CheckRequest] = []
        self.begun, self.hold = asyncio.Event(), asyncio.Event()
        self.hold.set()

    async def check_request(self, draft: CheckRequest) -> list[Problem]:
        self.drafts.append(draft)
        self.begun.set()
        await self.hold.wait()
        if self.error is not None:
            raise self.error
        return self.problems


class Server(FolderJobs):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.checker, service = FakeChecker(), job_service(self.store)
        routers = [job_routes.make_router(service), job_check.make_router(service, self.checker)]
        self.http = client_of(routers)

    async def check(self, status: int = 200, **changes: Any) -> dict[str, Any]:
        response = await self.http.post(URL, json=BODY | changes)
        assert SECRET not in response.text
        return body_of(response, status)


server = fixture_of(Server)


async def test_a_right_request_is_valid_and_no_job_is_created(server: Server) -> None:
    assert await server.check() == {"object": "fine_tuning.job.check", "valid": True, "problems": []}
    assert server.checker.drafts[0].model == "gpt-5" and '"training_file": "file-1"' in server.checker.drafts[0].spec
    assert server.store.list_jobs(None) == ([], False)


async def test_all_mistakes_of_the_form_are_listed_and_no_file_is_read(server: Server) -> None:
    found = await server.check(seed="x", suffix="a" * 65, color="red")
    assert found["valid"] is False and server.checker.drafts == []
    assert {problem["field"] for problem in found["problems"]} == {"seed", "suffix", "color"}
    assert all(problem["message"] and problem["fix"] for problem in found["problems"])


async def test_the_form_alone_can_be_checked(server: Server) -> None:
    answer = await server.http.post(URL, params={"files": "false"}, json=BODY)
    assert answer.json()["valid"] and server.checker.drafts == []


async def test_a_look_before_training_is_checked_with_its_draws(server: Server) -> None:
    answer = await server.http.post(URL, params={"samples": "8"}, json=BODY)
    assert answer.json()["valid"] and server.checker.drafts[0].samples == 8
    supervised = BODY | {"method": {"type": "supervised"}}
    ungraded = await server.http.post(URL, params={"samples": "8"}, json=supervised)
    assert [problem["code"] for problem in ungraded.json()["problems"]] == ["not_gradable"]
    too_many = await server.http.post(URL, params={"samples": "129"}, json=BODY)
    assert body_of(too_many, 400)["error"]["param"] == "samples"


async def test_problems_of_files_have_their_lines(server: Server) -> None:
    server.checker.problems = [ROW]
    [problem] = (await server.check())["problems"]
    assert (problem["code"], problem["line"], problem["rows"]) == ("broken_json", 3, "3, 5")


async def test_a_check_that_fails_says_so(server: Server) -> None:
    server.checker.error = RftError("it crashed at /secret/path", public_message="the check of the job failed")
    error = (await server.check(400))["error"]
    assert (error["code"], error["message"]) == ("check_failed", "the check of the job failed")


async def test_a_key_has_one_check_at_a_time(server: Server) -> None:
    server.checker.hold.clear()
    first = asyncio.create_task(server.check())
    await server.checker.begun.wait()
    assert (await server.check(429))["error"]["code"] == "too_many_checks"
    server.checker.hold.set()
    assert (await first)["valid"] and (await server.check())["valid"]
