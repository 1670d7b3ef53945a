"""Sessions against a real server: each session that was opened is ended once, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent_rft.actors.runtime.timing import Timing
from agent_rft.actors.tools.session_journal import ToolSessionJournal
from agent_rft.actors.tools.tool_sessions import WARM_UP_STARTS, ToolSessions
from agent_rft.errors import EndpointRefused, ToolFailed
from agent_rft.spec.endpoints import SessionSpec
from tests.support.fakes_http import LOCAL, Behavior, FakeEndpoint, FakeTime, Received, hangs, says, until

ITEM = {"question": "q"}
Book = Callable[..., ToolSessions]


async def quick_sleep(seconds: float) -> None:
    await asyncio.sleep(seconds / 1000)


QUICK = Timing(sleep=quick_sleep)
"""Sleeps take a thousandth of their time."""


@dataclass
class Machines:
    """A server that gives each rollout a machine, and counts starts and confirmed ends."""

    answer: Behavior = field(default_factory=lambda: says({}))
    starts: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    most_open: int = 0

    async def __call__(self, request: Received) -> web.StreamResponse:
        trace_id, kind = request.body["trace_id"], request.body["type"].removeprefix("session_")
        assert request.headers["Idempotency-Key"] == f"{trace_id}/{kind}"
        if kind == "start":
            self.starts[trace_id] += 1
            self.order.append(trace_id)
            self.open.add(trace_id)
            self.most_open = max(self.most_open, len(self.open))
            return await self.answer(request)
        response = await self.answer(request)
        if response.status < 500 and response.status != 429:
            self.ends[trace_id] += 1
            self.open.discard(trace_id)
            self.reasons[trace_id] = request.body["reason"]
        return response


def only(kind: str, behave: Behavior) -> Behavior:
    """Starts or ends (`kind`) are answered by `behave`, the others with 200."""

    async def answer(request: Received) -> web.StreamResponse:
        return await (behave if request.body["type"] == f"session_{kind}" else says({}))(request)

    return answer


@pytest.fixture
async def book() -> AsyncIterator[Book]:
    """A factory of books, which closes them after the test."""
    made: list[ToolSessions] = []

    def make(url: str, journal: Path | None = None, timing: Timing = QUICK, **spec: Any) -> ToolSessions:
        urls = {"start_url": url, "end_url": url} if "start_url" not in spec and "end_url" not in spec else {}
        made.append(ToolSessions(SessionSpec.model_validate({**urls, **spec}), journal, LOCAL, timing=timing))
        return made[-1]

    yield make
    for one in made:
        await one.close("test_over", deadline_s=0)  # its server is gone


async def test_start_and_end_are_sent_with_the_reason(book: Book) -> None:
    async with FakeEndpoint(says({})) as server:
        sessions = book("", start_url=f"{server.url}/start", end_url=f"{server.url}/end", headers={"X-Key": "secret"})
        await sessions.start("trace_1", ITEM)
        assert sessions.is_open("trace_1")
        sessions.end("trace_1", "graded")
        assert not sessions.is_open("trace_1")
        await until(lambda: sessions.stats()["ended"] == 1)
    start, end = server.received
    assert (start.path, start.body) == (
        "/run/start",
        {"type": "session_start", "trace_id": "trace_1", "item": ITEM},
    )
    assert (end.path, end.body) == ("/run/end", {"type": "session_end", "trace_id": "trace_1", "reason": "graded"})
    assert [r.headers["Idempotency-Key"] for r in server.received] == ["trace_1/start", "trace_1/end"]
    assert [r.headers["X-Key"] for r in server.received] == ["secret", "secret"]


@pytest.mark.parametrize(("named", "sent"), [("start_url", "session_start"), ("end_url", "session_end")])
async def test_a_job_may_name_only_one_of_the_two_urls(book: Book, named: str, sent: str) -> None:
    async with FakeEndpoint(says({})) as server:
        sessions = book("", **{named: server.url})
        await sessions.start("trace_1", ITEM)
        sessions.end("trace_1", "graded")
        await until(lambda: sessions.stats()["ended"] == 1)
    assert [received.body["type"] for received in server.received] == [sent]


async def test_at_most_max_open_sessions_are_open_and_waiters_are_served_in_order(book: Book) -> None:
    async with FakeEndpoint(machines := Machines()) as server:
        sessions = book(server.url, max_open=2)
        starts = [asyncio.create_task(sessions.start(f"trace_{i}", ITEM)) for i in range(6)]
        await asyncio.gather(*starts[:2])
        starts[2].cancel()  # a cancelled waiter does not affect the others
        for i in (0, 1, 3, 4, 5):
            await starts[i]
            sessions.end(f"trace_{i}", "graded")
        await until(lambda: sessions.stats()["ended"] == 5)
    assert machines.order == [f"trace_{i}" for i in (0, 1, 3, 4, 5)]
    assert machines.most_open == 2


async def test_starts_keep_to_the_rate_and_the_wait_does_not_count_against_the_timeout(book: Book) -> None:
    fake = FakeTime()
    at: list[float] = []

    async def behave(request: Received) -> web.StreamResponse:
        at.append(fake.now)
        return web.json_response({})

    async with FakeEndpoint(behave) as server:
        sessions = book("", timing=fake.timing(), start_url=server.url, rate_limit_per_s=0.1, timeout_s=5)
        for i in range(4):
            await sessions.start(f"trace_{i}", ITEM)
    assert at == pytest.approx([0, 10, 20, 30])


async def test_a_cold_server_gets_few_concurrent_starts_and_more_as_it_answers(book: Book) -> None:
    gate = asyncio.Semaphore(0)

    async def boots(request: Received) -> web.StreamResponse:
        await gate.acquire()
        return web.json_response({})

    async with FakeEndpoint(only("start", boots)) as server:
        sessions = book(server.url, max_concurrency=16)
        starts = [asyncio.create_task(sessions.start(f"trace_{i}", ITEM)) for i in range(100)]
        for expected in (WARM_UP_STARTS, 2 * WARM_UP_STARTS, 4 * WARM_UP_STARTS, 16):
            await until(lambda expected=expected: server.open_now == expected)
            for _ in range(expected):
                gate.release()
        for _ in starts:
            gate.release()
        await asyncio.gather(*starts)
    assert server.most_open == 16


@pytest.mark.parametrize("kind", ["hangs", "drops", "500", "404"])
async def test_a_failed_start_discards_the_rollout_and_the_session_is_still_ended(book: Book, kind: str) -> None:
    async def drops(request: Received) -> web.StreamResponse:
        request.drop()
        return web.Response()

    behave = {"hangs": hangs, "drops": drops, "500": says("no room", 500), "404": says("what?", 404)}[kind]
    async with FakeEndpoint(machines := Machines(only("start", behave))) as server:
        sessions = book(server.url, timeout_s=0.3 if kind == "hangs" else 30)
        with pytest.raises(ToolFailed, match="session start"):
            await sessions.start("trace_1", ITEM)
        assert not sessions.is_open("trace_1")
        sessions.end("trace_1", "tool_failed")  # a later end by the rollout changes nothing
        await until(lambda: not machines.open)
    assert machines.reasons == {"trace_1": "start_failed"}
    assert sessions.stats()["start_failures"] == 1


async def test_a_busy_server_is_waited_for(book: Book) -> None:
    answers = iter([503, 429, 503])

    async def busy(request: Received) -> web.StreamResponse:
        return web.json_response({}, status=next(answers, 200), headers={"Retry-After": "20"})

    async with FakeEndpoint(Machines(busy)) as server:
        sessions = book(server.url, timing=FakeTime().timing())
        await sessions.start("trace_1", ITEM)
    assert len(server.received) == 4


async def test_a_server_that_answers_401_stops_the_job_and_gets_no_end(book: Book) -> None:
    async with FakeEndpoint(says("who?", 401)) as server:
        sessions = book(server.url)
        with pytest.raises(EndpointRefused, match="session start"):
            await sessions.start("trace_1", ITEM)
        assert await sessions.close("job_stopped") == 0
    assert len(server.received) == 1


@pytest.mark.parametrize(("status", "kind"), [(409, "bad_answer"), (413, "request_too_large"), (402, "no_credit")])
async def test_a_session_that_is_not_opened_discards_its_rollout_with_the_servers_reason(
    book: Book, status: int, kind: str
) -> None:
    item = {"page": "报" * 1_000}
    async with FakeEndpoint(says("no machine is free", status)) as server:
        sessions = book(server.url)
        with pytest.raises(ToolFailed, match=rf"session start .*HTTP {status} .*no machine is free") as failed:
            await sessions.start("trace_1", item)
        await sessions.close("job_stopped")
    assert failed.value.details["kind"] == kind
    assert server.received[0].body["item"] == item and len(server.received[0].raw) < 3_200


async def test_a_start_that_is_cancelled_is_ended_after_the_server_has_answered(book: Book) -> None:
    booted = asyncio.Event()

    async def boots(request: Received) -> web.StreamResponse:
        await booted.wait()
        return web.json_response({})

    async with FakeEndpoint(machines := Machines(only("start", boots))) as server:
        sessions = book(server.url)
        start = asyncio.create_task(sessions.start("trace_1", ITEM))
        await until(lambda: server.open_now == 1)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        await asyncio.sleep(0.02)
        assert machines.ends == {}  # an end that overtakes its start would leave the machine running
        booted.set()
        await until(lambda: not machines.open)
    assert machines.reasons == {"trace_1": "cancelled"}


async def test_an_end_before_its_start_keeps_the_session_closed(book: Book) -> None:
    async with FakeEndpoint(says({})) as server:
        sessions = book(server.url)
        sessions.end("trace_1", "cancelled")
        with pytest.raises(ToolFailed, match="trace_1"):
            await sessions.start("trace_1", ITEM)
    assert server.received == []


async def test_an_end_is_repeated_until_it_is_confirmed_and_the_session_counts_as_open_until_then(
    tmp_path: Path,
) -> None:
    down = True
    messages: list[str] = []

    async def ends(request: Received) -> web.StreamResponse:
        return web.json_response({}, status=500 if down else 200)

    async with FakeEndpoint(machines := Machines(only("end", ends))) as server:
        spec = SessionSpec(start_url=server.url, end_url=server.url, max_open=1)
        sessions = ToolSessions(spec, tmp_path / "sessions.jsonl", LOCAL, on_message=messages.append, timing=QUICK)
        await sessions.start("trace_1", ITEM)
        sessions.end("trace_1", "graded")
        await until(lambda: sessions.stats()["end_failures"] >= 3)
        second = asyncio.create_task(sessions.start("trace_2", ITEM))
        await asyncio.sleep(0.02)
        assert not second.done()
        down = False
        await second
        assert await sessions.close("job_stopped") == 0
    assert machines.reasons == {"trace_1": "graded", "trace_2": "job_stopped"}
    assert machines.most_open == 1
    assert len(messages) == 1 and server.url in messages[0]


async def test_all_sessions_of_a_lost_engine_are_ended_and_it_gets_no_more(book: Book) -> None:
    async with FakeEndpoint(machines := Machines()) as server:
        sessions = book(server.url, max_open=3)
        for i in range(3):
            await sessions.start(f"trace_{i}", ITEM, f"engine-{i % 2}")
        waiting = asyncio.create_task(sessions.start("trace_3", ITEM, "engine-0"))
        await asyncio.sleep(0)
        sessions.end_owner("engine-0", "engine_failed")
        with pytest.raises(ToolFailed, match="ended before it was open"):
            await waiting
        with pytest.raises(ToolFailed, match="cannot open a session"):
            await sessions.start("trace_4", ITEM, "engine-0")
        await until(lambda: machines.open == {"trace_1"})
    assert machines.reasons == {"trace_0": "engine_failed", "trace_2": "engine_failed"}
    assert "trace_3" not in machines.starts


async def test_open_sessions_survive_a_killed_process(book: Book, tmp_path: Path) -> None:
    journal = tmp_path / "run" / "sessions.jsonl"
    async with FakeEndpoint(machines := Machines()) as server:
        killed = book(server.url, journal)
        for i in range(3):
            await killed.start(f"trace_{i}", ITEM)
        killed.end("trace_1", "graded")
        await until(lambda: killed.stats()["ended"] == 1)
        left = journal.read_bytes() + b'\n{"start": "trac'  # what kill -9 leaves

        again = tmp_path / "again.jsonl"
        again.write_bytes(left)
        restarted = book(server.url, again, max_open=1)
        assert again.read_text() == '{"start": "trace_0"}\n{"start": "trace_2"}\n'
        await restarted.start("trace_9", ITEM)
        await until(lambda: machines.open == {"trace_9"})
        assert await restarted.close("job_stopped") == 0
    assert machines.reasons == {
        "trace_0": "job_restarted",
        "trace_1": "graded",
        "trace_2": "job_restarted",
        "trace_9": "job_stopped",
    }
    assert ToolSessionJournal(again).open_sessions == []


async def test_closing_returns_by_its_deadline_and_leaves_unconfirmed_sessions_in_the_journal(
    book: Book, tmp_path: Path
) -> None:
    async with FakeEndpoint(only("end", hangs)) as server:
        sessions = book(server.url, tmp_path / "sessions.jsonl")
        for i in range(3):
            await sessions.start(f"trace_{i}", ITEM)
        assert await sessions.close("job_stopped", deadline_s=0.2) == 3
        with pytest.raises(ToolFailed):
            await sessions.start("trace_9", ITEM)
    assert ToolSessionJournal(tmp_path / "sessions.jsonl").open_sessions == ["trace_0", "trace_1", "trace_2"]


async def test_closing_gives_up_hanging_starts_and_ends_their_sessions(book: Book) -> None:
    async with FakeEndpoint(machines := Machines(only("start", hangs))) as server:
        sessions = book(server.url, max_concurrency=2)
        starts = [asyncio.create_task(sessions.start(f"trace_{i}", ITEM)) for i in range(5)]
        await until(lambda: server.open_now == 2)
        assert await sessions.close("job_stopped", deadline_s=0.5) == 0
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
    assert all(isinstance(outcome, ToolFailed) for outcome in outcomes)
    assert machines.reasons == {"trace_0": "job_stopped", "trace_1": "job_stopped"}
