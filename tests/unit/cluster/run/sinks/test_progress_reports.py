"""Reports of a step in progress say how many of its rollouts have ended, what they called, and the newest trace."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from agent_rft.actors.rollout.live_counts import RolloutProgress
from agent_rft.cluster.run.sinks.progress_reports import ANSWER_CHARS, CALL_CHARS, ProgressReports
from agent_rft.events import Event, RolloutsProgressed, StepDone
from agent_rft.types import GroupRequest, Rollout, ToolCall, ToolResult, Turn
from tests.support.builders import group_request, plan, rollout, task
from tests.support.events import run_event


class Ticks:
    """Each tick lets one report be made."""

    def __init__(self) -> None:
        self._ticks: asyncio.Queue[None] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        await self._ticks.get()

    async def one(self) -> None:
        self._ticks.put_nowait(None)
        for _ in range(3):
            await asyncio.sleep(0)


class Made:
    """Reports over a board: 2 groups of 4 rollouts a step, 3 validation and 5 test rows."""

    def __init__(self) -> None:
        self.board, self.ticks = RolloutProgress(lambda: 0.0), Ticks()
        self.events: list[Event] = []
        self.reports = ProgressReports(plan(batch_size=2, group_size=4), 3, 5, self.ticks.sleep)
        self.reports.start(self.board, self.events.append)

    async def report(self) -> RolloutsProgressed:
        with self.board.track_attempt(task("7-x")):
            await self.ticks.one()
        event = self.events[-1]
        assert isinstance(event, RolloutsProgressed)
        return event


def with_calls(request: GroupRequest, *names: str) -> Rollout:
    calls = tuple(ToolCall(name, name, '{"path": "' + "x" * 100 + '"}') for name in names)
    turn = Turn(2, 5, "text", calls, tuple(ToolResult(name, "x", error="tool_error") for name in names))
    return replace(rollout(request), turns=(turn,), answer="so\n" * 100)


async def test_groups_that_have_finished_and_rollouts_of_open_ones_count() -> None:
    made, request = Made(), group_request(1, size=4)
    made.reports.follow_loop(lambda: (1, [1]))
    with made.board.track_group(request):
        made.board.record_end(request, None)
        found = await made.report()
    assert (found.purpose, found.ended, found.total, found.in_flight) == ("train", 5, 8, 1)
    assert found.slowest_row == "7-x" and found.newest_trace == ""


async def test_an_evaluation_counts_all_of_its_rollouts() -> None:
    made, request = Made(), group_request(0, size=1, purpose="validation")
    with made.board.track_group(request):
        made.board.record_end(request, rollout(request))
        found = await made.report()
    assert (found.purpose, found.ended, found.total) == ("validation", 1, 3)


async def test_the_newest_trace_is_short_and_a_step_that_is_done_begins_anew() -> None:
    made, request = Made(), group_request(1, size=4)
    with made.board.track_group(request):
        made.board.record_end(request, with_calls(request, *"abcdefgh"))
        found = await made.report()
        assert found.calls == dict.fromkeys("abcdefgh", 1.0) == found.errors
        assert len(found.newest_calls) == 4 and max(map(len, found.newest_calls)) == CALL_CHARS
        assert len(found.newest_answer) == ANSWER_CHARS and "\n" not in found.newest_answer
        made.reports.handle_event(run_event(StepDone(step=1, total_steps=2, metrics={})))
        assert (await made.report()).calls == {}


async def test_nothing_is_reported_while_no_rollout_is_in_flight_and_after_the_end() -> None:
    made = Made()
    await made.ticks.one()
    assert made.events == []
    made.reports.close()
    with made.board.track_attempt(task("7-x")):
        await made.ticks.one()
    assert made.events == []
