"""Rollouts, metrics and report of a server's job: what its owner sees, and nobody else."""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from agent_rft.cli.api_commands.traces_command import ServerTraces
from agent_rft.cluster.records.index_tables import IndexedRollout
from agent_rft.cluster.records.rollout_filter import RolloutFilter
from agent_rft.cluster.records.rollout_index import Order, RolloutIndex
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.errors import UserError
from agent_rft.events import LearnerRestarted
from agent_rft.serve.jobs.owner_records import JobRecords
from agent_rft.serve.routes.job_records import make_router
from agent_rft.types import DiscardedRollout, Group, Turn
from tests.support.api import TOKEN, client_of, sync_client_of
from tests.support.bad_requests import Bad, check_refused
from tests.support.builders import group_request, rollout, untrained
from tests.support.events import run_event
from tests.support.jobs import FolderJobs, fixture_of
from tests.support.synthetic import Synthetic

PRIVATE = "connection to 10.1.2.3:8700 refused"


class Server(FolderJobs):
    """A job of the key `sk-rft-write` with a run, and a job without one; keys of FakeKeys."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.serve(JobRecords(self.store, self.runs))
        self.job, self.queued = (self.new(owner="sk-rft-write", digest=digest).id for digest in ("a", "b"))
        self.run = Synthetic().run(self.runs / self.job, steps=3, total=3, validation_every=3)

    def add(self, name: str, group: Group) -> None:
        folder = RunFolder(self.run.path)
        folder.handle_groups(name, [group])
        folder.close()

    def serve(self, records: JobRecords) -> None:
        self.routers = [make_router(records)]
        self.client = client_of(self.routers, token="")

    async def get(self, path: str, token: str = "sk-rft-write", job: str | None = None, **query: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"/v1/fine_tuning/jobs/{job or self.job}/{path}"
        return await self.client.get(url, params=query, headers=headers)


server = fixture_of(Server)


async def test_rollouts_are_paged_and_filtered(server: Server) -> None:
    first = (await server.get("rollouts", limit=5, order="best", tool="cat")).json()
    assert first["object"] == "list" and first["has_more"] and len(first["data"]) == 5
    assert all("cat" in json.dumps(entry["rollout"]["turns"]) for entry in first["data"])
    seen, after = list[str](), {}
    while True:
        body = (await server.get("rollouts", limit=100, step=3, **after)).json()
        seen += [entry["rollout"]["trace_id"] for entry in body["data"]]
        if not body["has_more"]:
            break
        after = {"after": body["last_id"]}
    assert len(seen) == len(set(seen)) == 6 * 4 + 8 * 2
    newest = (await server.get("rollouts", limit=1)).json()["data"][0]
    assert newest["file"] == "test-after" and newest["fine_tuning_job_id"] == server.job
    assert newest["request"]["task"]["item"]["reference_answer"] == "1000"


async def test_a_page_of_large_rollouts_ends_early(server: Server) -> None:
    request = group_request(0, 4)
    large = [rollout(request, i, turns=(Turn(2, 5, "x" * 5_000_000),)) for i in range(4)]
    server.add("step-000009", Group(request, tuple(large)))
    body = (await server.get("rollouts", limit=4, file="step-9")).json()
    assert (len(body["data"]), body["has_more"]) == (2, True)


async def test_summaries_list_without_turns_and_tokens(server: Server) -> None:
    body = (await server.get("rollouts", view="summary", limit=100, step=3, min_reward=0.5)).json()
    whole = (await server.get("rollouts", limit=100, step=3, min_reward=0.5)).json()
    assert [entry["id"] for entry in body["data"]] == [entry["id"] for entry in whole["data"]] != []
    assert {entry["object"] for entry in body["data"]} == {"fine_tuning.job.rollout.summary"}
    assert all(entry["reward"] >= 0.5 and "request" not in entry for entry in body["data"])


async def test_one_rollout_has_everything_but_its_tokens_which_come_in_parts(server: Server) -> None:
    [listed] = (await server.get("rollouts", limit=1, finish="answer")).json()["data"]
    one = (await server.get(f"rollouts/{listed['id']}")).json()
    [whole], [segment] = listed["rollout"].pop("segments"), one["rollout"].pop("segments")
    ids = whole["token_ids"]
    assert one == listed and "token_ids" not in segment and "logprobs" not in segment
    assert segment["num_tokens"] == len(ids)
    turn = one["rollout"]["turns"][0]
    query = {"start": turn["start"] - 1, "limit": turn["stop"] - turn["start"] + 1}
    body = (await server.get(f"rollouts/{listed['id']}/tokens", **query)).json()
    prompt, *sampled = body["tokens"]
    assert (body["num_tokens"], body["start"]) == (len(ids), turn["start"] - 1)
    assert prompt["logprob"] is None and prompt["version"] is None
    assert [token["id"] for token in sampled] == ids[turn["start"] : turn["stop"]]
    assert all(token["logprob"] <= 0 and token["version"] >= 0 and token["text"] is None for token in sampled)


async def test_tokens_have_the_texts_of_the_models_tokenizer(server: Server) -> None:
    letters = Tokenizer(WordLevel({chr(97 + i % 26) * (1 + i // 26): i for i in range(300)}))
    folder = server.run.path / "checkpoints" / "step-000003"
    folder.mkdir(parents=True)
    letters.save(str(folder / "tokenizer.json"))
    body = (await server.get("rollouts/test-after.0/tokens", limit=3)).json()
    assert [token["text"].strip() for token in body["tokens"]] == ["a", "b", "c"]


async def test_a_search_that_takes_long_ends_its_page_and_can_go_on(server: Server) -> None:
    server.serve(JobRecords(server.store, server.runs, search_s=0.0))
    first = (await server.get("rollouts", text="of company 1 in", view="summary")).json()
    assert first["has_more"] and first["last_id"] == "test-after.0" and first["data"] == []


def test_the_command_line_goes_on_with_a_search_that_takes_long(server: Server) -> None:
    server.serve(JobRecords(server.store, server.runs, search_s=0.0))
    with sync_client_of(server.routers) as client:
        traces = list(
            ServerTraces(client, server.job).find(RolloutFilter(text="of company 1 in", name="test-after"), "newest", 9)
        )
    assert [trace.outcome.row_id for trace in traces] == ["1-00000001"]


async def test_row_rewards_are_paged(server: Server) -> None:
    seen, after = list[dict[str, Any]](), {}
    while True:
        body = (await server.get("row_rewards", limit=3, step=3, order="best", **after)).json()
        seen += body["data"]
        if not body["has_more"]:
            break
        after = {"after": body["last_id"]}
    assert len(seen) == 8 and all(sum(row["bins"]) == row["num_rollouts"] for row in seen)
    means = [row["mean"] for row in seen]
    assert means == sorted(means, reverse=True)


async def test_what_rollouts_can_be_filtered_by_is_listed(server: Server) -> None:
    body = (await server.get("rollout_filters")).json()
    assert body["tools"] == ["cat", "list", "search"] and body["errors"] == ["tool_failed"]
    assert body["files"][-1] == {"name": "test-after", "step": None, "num_rollouts": 8}


async def test_metrics_are_paged_newest_first(server: Server) -> None:
    body = (await server.get("metrics", limit=2)).json()
    assert [entry["step_number"] for entry in body["data"]] == [3, 2] and body["has_more"]
    assert body["data"][0]["metrics"]["train_mean_reward"] >= 0
    body = (await server.get("metrics", after=body["last_id"])).json()
    assert [entry["step_number"] for entry in body["data"]] == [1] and not body["has_more"]


async def test_the_report_is_one_page_that_can_reach_nothing(server: Server) -> None:
    answer = await server.get("report")
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "sandbox allow-scripts" in policy and "default-src 'none'" in policy and "connect-src" not in policy
    assert "what was net income" in answer.text


PATHS = ["rollouts", "rollouts/test-after.0", "rollouts/test-after.0/tokens", "row_rewards", "rollout_filters"]


async def test_the_settings_are_those_that_the_run_resolved_without_secrets(server: Server) -> None:
    answer = await server.get("settings")
    body = answer.json()
    assert body["object"] == "fine_tuning.job.settings" and body["job"]["suffix"] == "ledger"
    assert body["plan"]["steps"] > 0 and body["job"]["method"]["reinforcement"]["algorithm"]
    assert "secret" not in answer.text.replace("signing_secret", "") and str(server.runs) not in answer.text


@pytest.mark.parametrize("path", [*PATHS, "metrics", "report", "settings"])
async def test_only_the_owner_and_admins_see_records(server: Server, path: str) -> None:
    assert (await server.get(path)).status_code == 200
    assert (await server.get(path, "sk-rft-of-a-test")).status_code == 200
    others, missing = await server.get(path, "sk-rft-read"), await server.get(path, "sk-rft-read", job="ftjob-none")
    assert (others.status_code, missing.status_code) == (404, 404)
    assert others.text.replace(server.job, "ftjob-none") == missing.text
    assert (await server.get(path, "")).status_code == 401


async def test_a_job_that_has_not_begun_has_no_records(server: Server) -> None:
    for path in ("rollouts", "row_rewards", "metrics"):
        assert (await server.get(path, job=server.queued)).json()["data"] == []
    settings = (await server.get("settings", job=server.queued)).json()
    assert (settings["job"], settings["plan"]) == (None, None)
    answer = await server.get("report", job=server.queued)
    assert answer.status_code == 404 and "no report yet" in answer.text
    assert not (server.runs / server.queued).exists()


async def test_clients_see_no_paths_and_no_errors_of_the_servers_network(server: Server) -> None:
    request = group_request(0, 1)
    lost = DiscardedRollout("trace_lost", "0", 0, "tool_failed", PRIVATE, f"http://{PRIVATE}")
    graded = rollout(request)
    graded = replace(graded, grade=replace(graded.grade, held_out_error=PRIVATE))
    server.add("test-after", Group(request, (graded,), (lost,)))
    folder = RunFolder(server.run.path)
    folder.handle_event(run_event(LearnerRestarted(cause=PRIVATE, times=1)))
    folder.close()
    one, discarded = "rollouts/test-after.0", "rollouts/test-after.1"
    for answer in (
        await server.get("rollouts", file="test-after"),
        await server.get("report"),
        await server.get(discarded),
    ):
        assert answer.status_code == 200 and "tool_failed" in answer.text
        assert "10.1.2.3" not in answer.text and str(server.runs) not in answer.text
    assert "10.1.2.3" not in (await server.get(one)).text
    assert (await server.get("rollouts", text="10.1.2.3")).json()["data"] == []


async def test_clients_see_which_rollouts_are_not_trained_on_or_timed_out(server: Server) -> None:
    request = group_request(0, 2)
    late = replace(rollout(request, 1), finish="timeout")
    server.add("test-after", Group(request, (untrained(rollout(request)), late)))
    for view in ("whole", "summary"):
        listed = (await server.get("rollouts", file="test-after", finish="timeout", view=view)).json()["data"]
        assert [found["id"] for found in listed] == ["test-after.1"]
    shown = [(await server.get(f"rollouts/test-after.{n}")).json()["rollout"] for n in (0, 1)]
    assert [found["grade"]["train"] for found in shown] == [False, True]
    assert [found["finish"] for found in shown] == ["answer", "timeout"]


async def test_a_damaged_file_is_left_out_of_the_report_which_says_so(server: Server) -> None:
    path = server.run.path / "rollouts" / "test-after.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-20])
    answer = await server.get("report")
    assert answer.status_code == 200 and str(server.runs) not in answer.text
    assert "Left out: the rollouts test-after are damaged." in answer.text


async def test_rollouts_that_are_not_where_the_index_says_are_asked_for_again(server: Server) -> None:
    path = server.run.path / "rollouts" / "step-000002.jsonl.zst"
    stat = path.stat()
    path.write_bytes(b"\0" * stat.st_size)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as if it were replaced while it is read
    answer = await server.get("rollouts", file="step-2")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert (
        "The result is not ready: the rollouts step-000002 were written again" in answer.text
        and str(server.runs) not in answer.text
    )


async def test_numbers_that_are_not_finite_and_half_characters_are_sent(server: Server) -> None:
    request = group_request(0, 1)
    odd = rollout(request, answer="half \ud800", wall_s=math.nan)
    server.add("step-000009", Group(request, (odd,)))
    [entry] = (await server.get("rollouts", file="step-9")).json()["data"]
    assert entry["rollout"]["wall_s"] is None and entry["rollout"]["answer"] == "half \ud800"


JOB = "/v1/fine_tuning/jobs/JOB"
BAD = [
    Bad("an unknown tool", "GET", f"{JOB}/rollouts?tool=serch", "tool"),
    Bad("an unknown error", "GET", f"{JOB}/rollouts?error=x", "error"),
    Bad("an unknown file", "GET", f"{JOB}/rollouts?file=..%2F..%2Fstate.db", "file"),
    Bad("a step that was not done", "GET", f"{JOB}/rollouts?step=99", "step"),
    Bad("a negative step", "GET", f"{JOB}/rollouts?step=-1", "step"),
    Bad("an unknown finish", "GET", f"{JOB}/rollouts?finish=well", "finish"),
    Bad("a grade that is not a number", "GET", f"{JOB}/rollouts?min_grade=nan", "min_grade"),
    Bad("an unknown order", "GET", f"{JOB}/rollouts?order=random", "order"),
    Bad("limit 101", "GET", f"{JOB}/rollouts?limit=101", "limit"),
    Bad("a cursor of another list", "GET", f"{JOB}/rollouts?after=ftevent-1", "after"),
    Bad("a cursor that is SQL", "GET", f"{JOB}/rollouts?after=' OR 1=1 --", "after"),
    Bad("a cursor with NUL", "GET", f"{JOB}/rollouts?after=step-000001.%00", None),
    Bad("a long filter", "GET", f"{JOB}/rollouts?row={'x' * 201}", "row"),
    Bad("an empty text", "GET", f"{JOB}/rollouts?text=", "text"),
    Bad("a view that there is not", "GET", f"{JOB}/rollouts?view=all", "view"),
    Bad("a rollout that there is not", "GET", f"{JOB}/rollouts/step-000001.999", "rollout_id", 404),
    Bad("a rollout that is a path", "GET", f"{JOB}/rollouts/..%2f..%2fstate.db", None, 404),
    Bad("tokens of a segment that there is not", "GET", f"{JOB}/rollouts/test-after.0/tokens?segment=9", "segment"),
    Bad("tokens beyond the end", "GET", f"{JOB}/rollouts/test-after.0/tokens?start=99999", "start"),
    Bad("too many tokens", "GET", f"{JOB}/rollouts/test-after.0/tokens?limit=2001", "limit"),
    Bad("tokens of a discarded rollout", "GET", f"{JOB}/rollouts/step-000001.7/tokens", "rollout_id"),
    Bad("rows after an unknown one", "GET", f"{JOB}/row_rewards?after=nobody", "after"),
    Bad("rows of an unknown step", "GET", f"{JOB}/row_rewards?step=99", "step"),
    Bad("rows in an unknown order", "GET", f"{JOB}/row_rewards?order=newest", "order"),
    Bad("metrics after nothing", "GET", f"{JOB}/metrics?after=step-x", "after"),
    Bad("metrics after an unknown step", "GET", f"{JOB}/metrics?after=step-000099", "after"),
    Bad("metrics after 5,000 digits", "GET", f"{JOB}/metrics?after=step-{'9' * 100}", "after"),
    Bad("an unknown job", "GET", "/v1/fine_tuning/jobs/..%2f..%2fetc/rollouts", None, 404),
    Bad("a deletion", "DELETE", f"{JOB}/rollouts", None, 405),
]


async def test_bad_requests_are_refused(server: Server, subtests: pytest.Subtests) -> None:
    async with client_of(server.routers, "sk-rft-write") as client:
        for bad in BAD:
            with subtests.test(bad.what):
                await check_refused(replace(bad, path=bad.path.replace("JOB", server.job)), client)


def test_the_command_line_reads_a_servers_job_as_it_reads_a_folder(server: Server) -> None:
    from agent_rft.cluster.views.traces import find_traces, trace_json

    wanted: list[tuple[RolloutFilter, Order, int | None]] = [
        (RolloutFilter(step=3), "oldest", None),
        (RolloutFilter(tool="cat"), "best", 7),
        (RolloutFilter(name="step-2", max_grade=0.5), "worst", 3),
        (RolloutFilter(text="I LOOK at cat"), "newest", 5),
        (RolloutFilter(text="company 1 in", max_reward=0.5), "worst", None),
    ]
    with sync_client_of(server.routers) as client:
        remote = ServerTraces(client, server.job)
        assert remote.newest_file() == "test-after"
        for one in wanted:
            local = [trace_json(trace) for trace in find_traces(server.run, *one) if trace.outcome.trace_id]
            hidden = [line.replace("search answered 503", "") for line in local]
            assert [trace_json(trace) for trace in remote.find(*one)] == hidden
        with pytest.raises(UserError, match="has no rollout with row 'nobody'"):
            list(remote.find(RolloutFilter(row="nobody"), "oldest", None))
        with pytest.raises(UserError, match="tool: no rollouts have the tool 'serch'; available: cat, list, search"):
            list(remote.find(RolloutFilter(tool="serch"), "oldest", None))
        with pytest.raises(UserError, match="the job has no rollouts yet"):
            ServerTraces(client, server.queued).newest_file()


async def test_a_key_may_run_half_of_the_text_searches(server: Server) -> None:
    begun, may_end = threading.Semaphore(0), threading.Event()

    class Index(RolloutIndex):
        def search_text(self, found: Iterable[IndexedRollout], wanted: str) -> Iterator[tuple[IndexedRollout, bool]]:
            begun.release()
            assert may_end.wait(20)
            return super().search_text(found, wanted)

    server.serve(JobRecords(server.store, server.runs, Index))

    async def search(token: str = "sk-rft-write", view: str = "summary") -> httpx.Response:
        return await server.get("rollouts", token, text="net income", view=view, limit=5)

    running = [asyncio.create_task(search(view=view)) for view in ("summary", "whole")]
    try:
        for _ in running:
            assert await asyncio.to_thread(begun.acquire, timeout=20)
        refused = await search()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert "too many text searches are running, for this API key" in refused.json()["error"]["message"]
        assert (await server.get("rollouts")).status_code == 200, "only searches are limited"
        others = [asyncio.create_task(search(TOKEN)) for _ in running]
        for _ in others:
            assert await asyncio.to_thread(begun.acquire, timeout=20)
    finally:
        may_end.set()
    assert {answer.status_code for answer in await asyncio.gather(*running, *others)} == {200}
    assert (await search()).status_code == 200
