"""Evaluations of jobs, listed and compared row by row through the API."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.serve.jobs.job_comparisons import ComparisonSide, JobComparisons
from agent_rft.serve.routes.comparison_routes import make_router
from tests.support.api import TOKEN, body_of, client_of
from tests.support.builders import group, group_request, task
from tests.support.jobs import FolderJobs, fixture_of
from tests.support.synthetic import Synthetic


class Server(FolderJobs):
    """A job of the key `sk-rft-write` with a run of three steps, and one that has not begun."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.routers = [make_router(self.store, JobComparisons(self.runs))]
        self.job, self.queued = (self.new(owner="sk-rft-write", digest=digest).id for digest in ("a", "b"))
        Synthetic().run(self.runs / self.job, steps=3, total=3, validation_every=3)

    async def get(self, path: str, *sides: str, token: str = "sk-rft-write") -> httpx.Response:
        async with client_of(self.routers, token) as client:
            return await client.get(f"/v1/fine_tuning/{path}", params=[("side", side) for side in sides])

    async def compare(self, *sides: str, status: int = 200, **options: str) -> dict[str, Any]:
        answer = await self.get("comparison", *sides, **options)
        assert str(self.runs) not in answer.text
        return body_of(answer, status)


server = fixture_of(Server)


async def test_the_evaluations_of_a_job_are_listed_with_their_figures(server: Server) -> None:
    found = (await server.get(f"jobs/{server.job}/evaluations")).json()["data"]
    names = ["test-before", "test-after", "validation-000000", "validation-000003"]
    assert [evaluation["id"] for evaluation in found] == names
    assert found[0]["file"] == "test_file" and found[0]["num_rows"] == 8 and 0 <= found[0]["grade"] <= 1
    assert found[3]["file"] == "validation_file" and found[3]["samples"] == 2
    assert all(evaluation["num_rollouts"] > 0 for evaluation in found)
    lacking = [evaluation for evaluation in found if evaluation["num_missing"]]
    assert all(one["grade_if_wrong"] <= one["grade"] <= one["grade_if_right"] for one in lacking)
    assert {one["grade_if_wrong"] for one in found if one not in lacking} <= {None}
    assert (await server.get(f"jobs/{server.queued}/evaluations")).json() == {"object": "list", "data": []}


async def test_two_evaluations_are_compared_row_by_row(server: Server) -> None:
    found = await server.compare(f"{server.job}:test-before", f"{server.job}:test-after")
    assert [side["label"] for side in found["sides"]] == [
        f"{server.job}:{name}" for name in ("test-before", "test-after")
    ]
    assert found["changes"][0]["measures"]["reward"]["verdict"] in ("better", "unclear")
    assert len(found["rows"]) == 8 and found["rows"][0]["question"].startswith("what was net income")
    assert found["rows"][0]["sides"][1]["trace_ids"][0].startswith("trace_")


async def test_a_job_alone_is_its_newest_evaluation(server: Server) -> None:
    found = await server.compare(f"{server.job}:validation-000000", server.job)
    assert [side["name"] for side in found["sides"]] == ["validation-000000", "validation-000003"]


async def test_an_evaluation_has_not_changed_against_itself(server: Server) -> None:
    found = await server.compare(*[f"{server.job}:test-after"] * 2)
    first, second = found["sides"]
    assert first == second and first["rows_of_this_side_only"] == []
    (change,) = found["changes"]
    assert {measure["change"] for measure in change["measures"].values()} == {0.0}
    assert {measure["verdict"] for measure in change["measures"].values()} <= {"same", "unclear"}
    assert (change["gained"], change["lost"]) == ([], [])
    assert all(row["sides"][0] == row["sides"][1] for row in found["rows"])


async def test_an_evaluation_that_is_not_there_is_refused_with_those_that_are(server: Server) -> None:
    error = (await server.compare(server.job, f"{server.job}:../../x", status=400))["error"]
    assert error["param"] == "side" and "use one of test-before, test-after" in error["message"]
    error = (await server.compare(server.job, server.queued, status=400))["error"]
    assert error["param"] == "side" and "has no evaluation of its test_file" in error["message"]
    assert (await server.compare(server.job, status=400))["error"]["param"] == "side"


async def test_different_rows_cannot_be_compared(server: Server) -> None:
    run = RunFolder(server.runs / server.queued)
    run.handle_groups("test-after", [group(group_request(task=task("other"), purpose="test"), [1.0])])
    run.close()
    error = (await server.compare(f"{server.job}:test-after", server.queued, status=400))["error"]
    assert "the evaluations graded different rows" in error["message"] and error["param"] == "side"


async def test_only_the_owner_and_admins_compare(server: Server) -> None:
    await server.compare(server.job, server.job, token="sk-rft-of-a-test")
    await server.compare(server.job, server.job, token="sk-rft-read", status=404)
    assert (await server.get(f"jobs/{server.job}/evaluations", token="sk-rft-read")).status_code == 404


async def test_a_key_runs_one_comparison_at_a_time(server: Server) -> None:
    begun, may_end = threading.Semaphore(0), threading.Event()

    class Comparisons(JobComparisons):
        def compare(self, requested: Sequence[ComparisonSide]) -> dict[str, Any]:
            begun.release()
            assert may_end.wait(20)
            return super().compare(requested)

    server.routers = [make_router(server.store, Comparisons(server.runs))]
    sides = [f"{server.job}:test-before", f"{server.job}:test-after"]
    running = [asyncio.create_task(server.compare(*sides))]
    try:
        assert await asyncio.to_thread(begun.acquire, timeout=20)
        refused = await server.compare(*sides, status=503)
        assert refused["error"]["code"] == "not_ready"
        running.append(asyncio.create_task(server.compare(*sides, token=TOKEN)))
        assert await asyncio.to_thread(begun.acquire, timeout=20)
    finally:
        may_end.set()
    assert all(len(found["rows"]) == 8 for found in await asyncio.gather(*running))
    assert len((await server.compare(*sides))["rows"]) == 8
