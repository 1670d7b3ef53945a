"""The watchdog over fake actors: silent ones are reported, then given up; stalled work is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from agent_rft.actors.runtime.actor_calls import LOST, UNREACHABLE
from agent_rft.actors.runtime.rollout_stages import RolloutStages, WorkInProgress
from agent_rft.actors.runtime.watchdog import CHECK_INTERVAL_S, GIVE_UP_S, SILENT_S, STALLED_S, Watchdog, WatchedActor
from agent_rft.errors import EngineFailed
from agent_rft.events import ActorRecovered, ActorSilent, Event, RolloutsStalled, WorkStalled

TO_SILENCE = round(SILENT_S / CHECK_INTERVAL_S)
TO_GIVING_UP = round(GIVE_UP_S / CHECK_INTERVAL_S)


class Actor:
    """Answers with `doing` while `moves` is set."""

    def __init__(self, name: str, *doing: WorkInProgress, waits_here: Any = None) -> None:
        self.name = name
        self.doing = list(doing)
        self.moves = asyncio.Event()
        self.moves.set()
        self.dead, self.reachable = False, True
        self.process = object()
        self.given_up: list[str] = []
        self._waits_here = waits_here

    async def heartbeat(self) -> list[WorkInProgress]:
        await self.moves.wait()
        if self.dead:
            raise EngineFailed("the process was lost", kind=LOST)
        if not self.reachable:
            raise EngineFailed("the process was lost", kind=UNREACHABLE)
        return self.doing

    async def give_up(self, why: str) -> None:
        self.given_up.append(why)

    def watched(self) -> WatchedActor:
        return WatchedActor(self.name, self.heartbeat, self.give_up, self.process, self._waits_here)


class Watch:
    """A watchdog over actors, and the events that it reported."""

    def __init__(self, *actors: Actor, stage_deadlines_s: Mapping[str, float] | None = None) -> None:
        self.actors = list(actors)
        self.events: list[Event] = []
        self.rollouts = 0, 0
        self.dog = Watchdog(
            lambda: [actor.watched() for actor in self.actors],
            lambda: self.rollouts,
            self.events.append,
            stage_deadlines_s=stage_deadlines_s,
        )

    async def looks(self, count: int) -> list[Event]:
        """The events of this many looks."""
        self.events.clear()
        for _ in range(count):
            await self.dog.check()
            for _ in range(5):
                await asyncio.sleep(0)
        return list(self.events)


async def test_a_silent_engine_is_reported_once_with_its_rollouts_and_finally_given_up() -> None:
    engine = Actor("engine-0", WorkInProgress("trace_a", "sampling", 3), WorkInProgress("trace_b", "grading", 7))
    other = Actor("engine-1", WorkInProgress("trace_c", "sampling", 2))
    watch = Watch(engine, other)
    assert await watch.looks(100) == []
    engine.moves.clear()
    assert await watch.looks(TO_SILENCE) == []
    work = ("grading trace_b for 7 s", "sampling trace_a for 3 s")
    assert await watch.looks(1) == [ActorSilent(actor="engine-0", silent_s=30.0, work=work)]
    assert await watch.looks(TO_GIVING_UP) == []
    assert (engine.given_up, other.given_up) == (["the process has not answered for 180 s"], [])


async def test_an_actor_that_answers_again_is_not_given_up() -> None:
    watch = Watch(engine := Actor("engine-0"))
    await watch.looks(1)
    engine.moves.clear()
    await watch.looks(TO_SILENCE + 3)
    engine.moves.set()
    assert await watch.looks(2) == [ActorRecovered(actor="engine-0", silent_s=45.0)]
    assert await watch.looks(2 * TO_GIVING_UP) == []
    assert engine.given_up == []


async def test_an_unreachable_actor_counts_as_silent() -> None:
    engine = Actor("engine-0", WorkInProgress("trace_1", "sampling", 1.0))
    watch = Watch(engine)
    assert await watch.looks(2) == []
    engine.reachable = False
    (said,) = await watch.looks(TO_SILENCE + 1)
    assert said == ActorSilent(actor="engine-0", silent_s=30.0, work=("sampling trace_1 for 1 s",))
    await watch.looks(TO_GIVING_UP - TO_SILENCE)
    assert engine.given_up == ["the process has not answered for 180 s"]
    engine.reachable = True
    assert list(map(type, await watch.looks(2))) == [ActorRecovered]


async def test_a_silent_helper_is_reported_with_the_rollouts_that_wait_for_it() -> None:
    def waits_here(doing: WorkInProgress) -> bool:
        return doing.stage == "tool calls" and doing.trace_id in ("trace_a", "trace_c")

    engines = [
        Actor("engine-0", WorkInProgress("trace_a", "tool calls", 40), WorkInProgress("trace_b", "tool calls", 50)),
        Actor("engine-1", WorkInProgress("trace_c", "tool calls", 41), WorkInProgress("trace_d", "sampling", 60)),
    ]
    watch = Watch(*engines, dispatcher := Actor("the tool dispatcher", waits_here=waits_here))
    dispatcher.moves.clear()
    work = ("tool calls trace_c for 41 s", "tool calls trace_a for 40 s")
    silent = ActorSilent(actor="the tool dispatcher", silent_s=30.0, work=work, is_waited_for=True)
    assert await watch.looks(TO_SILENCE + 2) == [silent]


async def test_a_replacement_is_not_blamed_for_the_silence_before_it() -> None:
    watch = Watch(engine := Actor("engine-0"))
    engine.moves.clear()
    await watch.looks(TO_SILENCE - 1)
    engine.process = object()
    assert await watch.looks(TO_SILENCE) == []
    watch.actors.clear()
    assert await watch.looks(TO_SILENCE) == []


async def test_a_dead_actor_is_left_to_its_callers_and_a_bug_is_not_hidden() -> None:
    watch = Watch(engine := Actor("engine-0"))
    engine.dead = True
    assert await watch.looks(2 * TO_GIVING_UP) == []
    engine.doing, engine.dead = [None], False  # type: ignore[list-item]
    with pytest.raises(AttributeError):
        await watch.looks(2)


async def test_stalled_rollouts_are_reported_and_again_only_after_twice_the_time() -> None:
    engine = Actor("engine-0", WorkInProgress("trace_a", "grading", 320), WorkInProgress("trace_b", "sampling", 400))
    watch = Watch(engine)
    until_reported = round(STALLED_S / CHECK_INTERVAL_S)
    watch.rollouts = 7, 0
    assert await watch.looks(2 * until_reported) == []  # none is in flight
    watch.rollouts = 7, 2
    assert await watch.looks(until_reported - 1) == []
    longest = ("sampling trace_b for 400 s on engine-0", "grading trace_a for 320 s on engine-0")
    assert await watch.looks(1) == [RolloutsStalled(idle_s=300.0, num_in_flight=2, longest_rollouts=longest)]
    assert await watch.looks(until_reported - 1) == []
    assert await watch.looks(1) == [RolloutsStalled(idle_s=600.0, num_in_flight=2, longest_rollouts=longest)]
    watch.rollouts = 8, 1
    assert await watch.looks(until_reported + 1) == []  # rollouts of this job take that long


async def test_a_tool_call_of_five_hours_is_no_stall_until_its_deadline() -> None:
    engine = Actor(
        "engine-0", WorkInProgress("trace_a", "tool calls", 18_000), WorkInProgress("trace_b", "tool calls", 20)
    )
    watch = Watch(engine, stage_deadlines_s={"tool calls": 18_005.0})
    watch.rollouts = 7, 2
    five_hours = round(18_000 / CHECK_INTERVAL_S)
    assert await watch.looks(five_hours) == []
    engine.doing = [WorkInProgress("trace_a", "tool calls", 18_006)]
    (stalled,) = await watch.looks(2)
    assert isinstance(stalled, RolloutsStalled) and stalled.idle_s >= 18_000


async def test_rollouts_that_wait_for_the_sessions_of_long_calls_are_not_stalled() -> None:
    doing = [WorkInProgress("trace_a", "tool calls", 9_000), WorkInProgress("trace_b", "session start", 9_000)]
    watch = Watch(Actor("engine-0", *doing), stage_deadlines_s={"tool calls": 18_005.0, "session start": 125.0})
    watch.rollouts = 7, 2
    assert await watch.looks(2 * round(STALLED_S / CHECK_INTERVAL_S)) == []


@pytest.mark.parametrize(
    "doing",
    [
        [WorkInProgress("trace_a", "tool calls", 9_000), WorkInProgress("trace_b", "sampling", STALLED_S)],
        [WorkInProgress("trace_a", "tool calls", 9_000), WorkInProgress("trace_b", "grading", STALLED_S)],
        [WorkInProgress("trace_b", "session start", 9_000)],
        [WorkInProgress("trace_b", "sampling", 20)],
    ],
)
async def test_other_stuck_rollouts_are_reported_in_a_job_with_long_calls(doing: list[WorkInProgress]) -> None:
    deadlines = {"tool calls": 18_005.0, "grading": 125.0, "session start": 125.0}
    watch = Watch(Actor("engine-0", *doing), stage_deadlines_s=deadlines)
    watch.rollouts = 7, 2
    assert list(map(type, await watch.looks(round(STALLED_S / CHECK_INTERVAL_S) + 1))) == [RolloutsStalled]


async def test_a_learner_step_that_takes_too_long_is_reported() -> None:
    watch = Watch(rank := Actor("learner rank 0"))
    rank.doing = [WorkInProgress("", "step", STALLED_S - 1)]
    assert await watch.looks(2) == []
    rank.doing = [WorkInProgress("", "step", STALLED_S + 1)]
    assert await watch.looks(3) == [WorkStalled(actor="learner rank 0", stage="step", duration_s=STALLED_S + 1)]
    rank.doing = [WorkInProgress("", "save", STALLED_S + 1)]
    assert await watch.looks(3) == [WorkStalled(actor="learner rank 0", stage="save", duration_s=STALLED_S + 1)]


async def test_cancelling_the_watchdog_cancels_its_pending_pulses() -> None:
    watch = Watch(engine := Actor("engine-0"))
    engine.moves.clear()
    running = asyncio.create_task(watch.dog.run())
    for _ in range(5):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_longest_returns_the_oldest_rollouts_of_each_stage() -> None:
    now = 0.0
    in_flight = RolloutStages(lambda: now)
    for number in range(9):
        now = float(number)
        in_flight.enter(f"trace_{number}", "sampling" if number % 2 else "grading")
    in_flight.leave("trace_0")
    in_flight.enter("trace_1", "grading")
    now = 10.0
    shown = {(doing.trace_id, doing.stage, doing.duration_s) for doing in in_flight.list_longest()}
    grading = {("trace_2", "grading", 8.0), ("trace_4", "grading", 6.0), ("trace_6", "grading", 4.0)}
    assert shown == grading | {("trace_3", "sampling", 7.0), ("trace_5", "sampling", 5.0), ("trace_7", "sampling", 3.0)}
