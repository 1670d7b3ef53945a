"""A look at a job by the API: made with the job's request, followed and controlled below its own path, never a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_rft.serve.routes import job_routes, readiness_routes
from tests.support.api import TOKEN, body_of, client_of
from tests.support.jobs import BODY, FolderJobs, fixture_of, job_service

LOOKS, JOBS = "/v1/fine_tuning/readiness", "/v1/fine_tuning/jobs"
FOUND = {"verdict": "fix_first", "reasons": [{"code": "too_easy", "decides": True, "message": "m", "fix": "r"}]}


class Server(FolderJobs):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        service = job_service(self.store)
        self.http = client_of([job_routes.make_router(service), readiness_routes.make_router(service)])

    async def create(self, query: str = "", status: int = 200, **changes: Any) -> dict[str, Any]:
        return body_of(await self.http.post(f"{LOOKS}{query}", json=BODY | changes), status)


server = fixture_of(Server)


async def test_it_is_made_with_the_request_of_a_job_and_has_its_own_id(server: Server) -> None:
    made = await server.create("?samples=4&target_latency_s=2.5", metadata={"team": "a"})
    assert made["id"].startswith("ftready-") and made["object"] == "fine_tuning.readiness"
    assert (made["samples"], made["target_latency_s"], made["status"]) == (4, 2.5, "validating_files")
    assert (made["verdict"], made["reasons"], made["findings"], made["metadata"]) == (None, [], None, {"team": "a"})
    assert server.store.get(made["id"]).readiness == {"samples": 4, "target_s": 2.5}
    assert (await server.http.get(f"{LOOKS}/{made['id']}")).json() == made
    assert (await server.create(seed=1))["samples"] == 8


async def test_no_path_of_jobs_knows_it_and_its_path_knows_no_job(server: Server) -> None:
    look = (await server.create())["id"]
    job = (await server.http.post(JOBS, json=BODY)).json()["id"]
    assert [found["id"] for found in (await server.http.get(JOBS)).json()["data"]] == [job]
    assert (await server.http.get(JOBS, params={"after": look})).status_code == 400
    for path in (f"{JOBS}/{look}", f"{JOBS}/{look}/events", f"{JOBS}/{look}/checkpoints", f"{LOOKS}/{job}"):
        assert (await server.http.get(path)).status_code == 404, path
    for path in (f"{JOBS}/{look}/cancel", f"{LOOKS}/{job}/cancel", f"{LOOKS}/{job}/pause"):
        assert (await server.http.post(path)).status_code == 404, path
    assert {server.store.get(id).status for id in (look, job)} == {"validating_files"}


async def test_they_are_listed_newest_first_without_jobs(server: Server) -> None:
    first, second = (await server.create(seed=1))["id"], (await server.create(seed=2))["id"]
    await server.http.post(JOBS, json=BODY)
    listed = (await server.http.get(LOOKS, params={"limit": 1})).json()
    assert [one["id"] for one in listed["data"]] == [second] and listed["has_more"]
    rest = (await server.http.get(LOOKS, params={"after": second})).json()
    assert [one["id"] for one in rest["data"]] == [first] and not rest["has_more"]


@pytest.mark.parametrize(("token", "owns"), [("sk-rft-write", True), ("sk-rft-read", False), (TOKEN, False)])
async def test_only_its_owner_and_admins_know_it(server: Server, token: str, owns: bool) -> None:
    look = server.new(owner="sk-rft-write", readiness={"samples": 8, "target_s": None}).id
    sees = owns or token == TOKEN
    headers = {"authorization": f"Bearer {token}"}
    listed = (await server.http.get(LOOKS, headers=headers)).json()["data"]
    assert [one["id"] for one in listed] == ([look] if sees else [])
    for path in ("", "/events"):
        answer = await server.http.get(f"{LOOKS}/{look}{path}", headers=headers)
        assert answer.status_code == (200 if sees else 404), path


async def test_no_other_key_learns_that_it_is_there(server: Server) -> None:
    look = server.new(owner="key-1", readiness={"samples": 8, "target_s": None}).id
    headers = {"authorization": "Bearer sk-rft-write"}
    for id in (look, "ftready-unknown"):
        for action in ("cancel", "pause", "resume"):
            answer = await server.http.post(f"{LOOKS}/{id}/{action}", headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert (await server.http.get(LOOKS, params={"after": look}, headers=headers)).status_code == 400


async def test_it_waits_in_the_queue_of_the_jobs(server: Server) -> None:
    look = (await server.create())["id"]
    job = (await server.http.post(JOBS, json=BODY)).json()["id"]
    for id in (look, job):
        server.store.move(id, "queued")
    claimed = server.store.claim_next("m", 1, 10)
    assert claimed is not None and claimed.id == look
    assert server.store.claim_next("m", 1, 10) is None


async def test_it_is_paused_resumed_and_cancelled(server: Server) -> None:
    look = (await server.create())["id"]
    server.store.move(look, "queued")
    server.store.move(look, "running")
    for action, status in (("pause", "paused"), ("resume", "queued"), ("cancel", "cancelled")):
        answer = await server.http.post(f"{LOOKS}/{look}/{action}")
        assert (answer.status_code, answer.json()["status"]) == (200, status)
    assert (await server.http.post(f"{LOOKS}/{look}/resume")).json()["error"]["code"] == "invalid_job_state"
    events = (await server.http.get(f"{LOOKS}/{look}/events")).json()["data"]
    assert events[0]["message"] == "The job was cancelled" and events[-1]["message"].endswith(look)


async def test_the_verdict_is_in_the_object(server: Server) -> None:
    look = (await server.create())["id"]
    for status in ("queued", "running"):
        server.store.move(look, status)
    server.store.move(look, "succeeded", findings=FOUND, result_files=["file-9"])
    answer = (await server.http.get(f"{LOOKS}/{look}")).json()
    assert (answer["verdict"], answer["reasons"], answer["findings"]) == ("fix_first", FOUND["reasons"], FOUND)
    assert answer["result_files"] == ["file-9"]


async def test_a_retry_finds_the_same_one_and_never_the_job_of_the_same_request(server: Server) -> None:
    first, again = await server.create(), await server.create()
    other = await server.create("?samples=4")
    job = (await server.http.post(JOBS, json=BODY)).json()
    assert first["id"] == again["id"] and len({first["id"], other["id"], job["id"]}) == 3


@pytest.mark.parametrize("query", ["?samples=1", "?samples=129", "?target_latency_s=0", "?target_latency_s=inf"])
async def test_a_bad_number_is_refused(server: Server, query: str) -> None:
    assert (await server.create(query, status=400))["error"]["type"] == "invalid_request_error"


async def test_a_supervised_job_cannot_be_looked_at(server: Server) -> None:
    answer = await server.create(status=400, method={"type": "supervised"})
    assert answer["error"]["code"] == "not_gradable" and answer["error"]["param"] == "method.type"
