"""A job's stream: what is new as it is written, taken up again where a client was, and ended with its key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.events import StepDone
from agent_rft.serve.jobs.job_changes import MAX_EVENTS, JobChanges, Position, StepMetrics
from agent_rft.serve.routes.job_stream import StreamLimits, make_router
from agent_rft.serve.stores.job_states import UnknownJob
from agent_rft.serve.stores.job_tables import EventRecord, JobRecord
from tests.support.api import by_hand, client_of
from tests.support.events import run_event
from tests.support.jobs import FolderJobs, fixture_of

AT_ONCE = StreamLimits(max_polls=1)


class Server(FolderJobs):
    """A running job of the key `sk-rft-write`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.job = self.new(owner="sk-rft-write").id

    def step(self, number: int, reward: float) -> None:
        run = RunFolder(self.runs / self.job)
        metrics = {"step": float(number), "total_steps": 9.0, "train_mean_reward": reward}
        run.handle_event(run_event(StepDone(step=number, total_steps=9, metrics=metrics)))
        run.close()

    def feed(self, position: str = "") -> JobChanges:
        return JobChanges(self.store, self.runs, self.job, Position.parse(position))

    async def get(self, token: str = "sk-rft-write", limits: StreamLimits = AT_ONCE, **options: Any) -> httpx.Response:
        async with client_of([make_router(self.store, self.runs, stream_limits=limits)], token) as client:
            return await client.get(f"/v1/fine_tuning/jobs/{self.job}/stream", **options)


server = fixture_of(Server)


def told(text: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, id and data of each event of a stream."""
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((fields["event"], fields["id"], json.loads(fields["data"])))
    return found


def shown(feed: JobChanges) -> list[Any]:
    """What a feed tells, in short: states, messages, steps with their rewards."""
    short: list[Any] = []
    for change in feed.iter_changes():
        match change:
            case JobRecord(status=status):
                short.append(status)
            case EventRecord(message=message):
                short.append(message)
            case StepMetrics(step=step, values=values):
                short.append((step, values["train_mean_reward"]))
    return short


async def test_a_stream_tells_the_job_its_events_and_its_metrics(server: Server) -> None:
    first = server.store.add_event(server.job, "info", "one", data={"text": "a half \ud83d and \u2028 a line"})
    server.step(1, 0.5)
    answer = await server.get()
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    (_, _, job), (_, at, event), (name, end, metrics) = told(answer.text)
    assert job["job"]["id"] == server.job and event["event"]["data"]["text"] == "a half \ud83d and \u2028 a line"
    assert metrics["metrics"]["metrics"]["train_mean_reward"] == 0.5
    assert (name, at, end) == ("metrics", f"{first.id}:0", f"{first.id}:1")


async def test_a_client_goes_on_where_it_was(server: Server) -> None:
    server.store.add_event(server.job, "info", "old")
    server.step(1, 0.5)
    *_, (_, position, _) = told((await server.get()).text)
    server.store.add_event(server.job, "info", "new")
    server.step(2, 0.6)
    for again in ({"headers": {"last-event-id": position}}, {"params": {"after": position}}):
        _, (_, _, event), (_, _, metrics) = told((await server.get(**again)).text)
        assert (event["event"]["message"], metrics["metrics"]["step_number"]) == ("new", 2)


def test_only_changes_are_told(server: Server) -> None:
    feed = server.feed()
    assert shown(feed) == ["validating_files"]
    assert shown(feed) == []
    server.store.add_event(server.job, "info", "one")
    server.store.add_event(server.job, "info", "two")
    server.store.move(server.job, "queued")
    server.step(1, 0.1)
    assert shown(feed) == ["queued", "one", "two", (1, 0.1)]
    assert shown(feed) == []


def test_steps_that_a_resumed_run_does_again_are_told_again(server: Server) -> None:
    for step in (1, 2):
        server.step(step, 0.1)
    feed = server.feed()
    assert shown(feed)[1:] == [(1, 0.1), (2, 0.1)]
    server.step(2, 0.3)
    assert shown(feed) == [(2, 0.3)]


def test_of_a_long_past_only_the_end_is_told(server: Server) -> None:
    for number in range(MAX_EVENTS + 30):
        server.store.add_event(server.job, "info", str(number))
    assert shown(server.feed())[1:] == [str(number) for number in range(30, MAX_EVENTS + 30)]


@pytest.mark.parametrize("position", ["", "nonsense", "ftevent-of-another:x", ":99999999999", "a:b:c", "ftevent-1:²"])
def test_a_position_that_is_none_is_the_beginning(server: Server, position: str) -> None:
    server.store.add_event(server.job, "info", "one")
    assert shown(server.feed(position))[1:] == ["one"]


async def test_metrics_are_for_the_owner_and_admins(server: Server) -> None:
    server.step(1, 0.5)
    for token, names in (("sk-rft-read", ["job"]), ("sk-rft-of-a-test", ["job", "metrics"])):
        assert [name for name, _, _ in told((await server.get(token)).text)] == names


async def test_a_key_has_a_bounded_number_of_streams(server: Server) -> None:
    answer = await server.get(limits=replace(AT_ONCE, max_streams_of_key=0))
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_in_progress")
    routers = [make_router(server.store, server.runs, stream_limits=replace(AT_ONCE, max_streams_of_key=1))]
    async with client_of(routers) as client:
        for _ in range(3):  # a stream that ended gives its place back
            assert (await client.get(f"/v1/fine_tuning/jobs/{server.job}/stream")).status_code == 200


@asynccontextmanager
async def opened(client: httpx.AsyncClient, url: str) -> AsyncIterator[int]:
    """The status of a stream that is open in the block; at its end the page is left, and so the stream has to end."""
    begun, left = asyncio.get_running_loop().create_future(), asyncio.Event()
    request = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if request:
            return request.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            begun.set_result(message["status"])

    stream = asyncio.create_task(by_hand(client, client.build_request("GET", url), receive, send))
    yield await asyncio.wait_for(begun, 20)
    left.set()
    await asyncio.wait_for(stream, 20)


async def test_a_stream_whose_page_was_left_ends_and_gives_its_place_back(server: Server) -> None:
    routers = [make_router(server.store, server.runs, stream_limits=StreamLimits(max_streams_of_key=1))]
    url = f"/v1/fine_tuning/jobs/{server.job}/stream"
    async with client_of(routers) as client:
        for _ in range(2):
            async with opened(client, url) as status:
                assert status == 200
                assert (await client.get(url)).status_code == 429


async def test_without_news_a_comment_keeps_the_connection(server: Server) -> None:
    answer = await server.get(limits=StreamLimits(poll_s=0.0, max_polls=3, comment_after_polls=2))
    assert ": nothing new\n\n" in answer.text


async def test_an_unknown_job_is_a_404_and_one_that_vanishes_ends_its_feed(server: Server) -> None:
    server.job = "ftjob-none"
    assert (await server.get()).status_code == 404
    with pytest.raises(UnknownJob):
        shown(server.feed())
