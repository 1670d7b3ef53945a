"""The driver's side of tool sessions, with a fake dispatcher that records its calls."""

from __future__ import annotations

from pathlib import Path

from agent_rft.actors.tools.dispatcher_actor import DispatcherClient
from agent_rft.cluster.run.run_actors import JobSessions
from agent_rft.errors import ActorStartFailed, RftError, ToolFailed
from agent_rft.events import Event


class FakeDispatcher(DispatcherClient):
    def __init__(self, left: int | RftError = 0) -> None:
        self.left = left
        self.ended: list[tuple[str, str]] = []
        self.closed: list[str] = []

    def end_owner_sessions(self, owner: str, reason: str) -> None:
        self.ended.append((owner, reason))

    async def close_sessions(self, reason: str) -> int:
        self.closed.append(reason)
        if isinstance(self.left, RftError):
            raise self.left
        return self.left

    async def take_session_messages(self) -> list[str]:
        return ["sessions cannot be ended"] if self.left else []


async def closed(dispatcher: FakeDispatcher, journal: Path) -> list[str]:
    events: list[Event] = []
    await JobSessions(dispatcher, journal, events.append).close()
    assert dispatcher.closed == ["job_stopped"]
    return [str(event) for event in events]


async def test_losing_an_engine_ends_its_own_sessions_and_not_those_of_its_successor(tmp_path: Path) -> None:
    dispatcher = FakeDispatcher()
    sessions = JobSessions(dispatcher, tmp_path / "sessions.jsonl", print)
    first, other = sessions.new_owner("engine-0"), sessions.new_owner("engine-1")
    sessions.end_lost_sessions("engine-0")
    second = sessions.new_owner("engine-0")
    sessions.end_lost_sessions("engine-0")
    await sessions.close()
    assert dispatcher.ended == [(first, "engine_failed"), (second, "engine_failed")]
    assert len({first, other, second}) == 3


async def test_a_run_reports_sessions_that_it_could_not_end_and_where_they_are_listed(tmp_path: Path) -> None:
    journal = tmp_path / "sessions.jsonl"
    assert await closed(FakeDispatcher(), journal) == []
    news, left = await closed(FakeDispatcher(left=3), journal)
    assert news == "sessions cannot be ended"
    assert "3 sessions" in left and str(journal) in left
    for error in (ToolFailed("its process was lost"), ActorStartFailed("it cannot start")):
        (lost,) = await closed(FakeDispatcher(left=error), journal)
        assert "may still be open" in lost and str(journal) in lost
