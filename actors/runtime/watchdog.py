"""Watchdog that detects hung actors of a job. Every few seconds, it asks each actor for the work in progress.

- An actor that does not answer for half a minute is reported, with the rollouts that wait for it.
- An engine, dispatcher or grader pool that does not answer for three minutes is replaced or restarted.
- A learner rank that does not answer for three minutes is killed, so that the learner restarts.
- An actor that answers but makes no progress for minutes is only reported.
- Calls to tools and graders are not reported before their deadlines, which may be hours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from agent_rft.actors.runtime.actor_calls import UNREACHABLE, call_actor
from agent_rft.actors.runtime.rollout_stages import Stage, WorkInProgress
from agent_rft.actors.runtime.timing import REAL_TIMING, Timing
from agent_rft.errors import DiscardError, RftError
from agent_rft.events import ActorRecovered, ActorSilent, RolloutsStalled, WorkStalled
from agent_rft.loop_protocols import Emit

CHECK_INTERVAL_S = 5.0
SILENT_S = 30.0
"""Seconds of silence after which an actor is reported.

Shorter silences are normal: a busy node or a compilation may cause them."""
GIVE_UP_S = 180.0
STALLED_S = 300.0
"""Duration, in seconds, at which slow work is first reported. It is reported again each time the duration doubles."""
TRACES_NAMED = 5
SESSION_START: Stage = "session start"
"""Stage in which a rollout starts its tool session.

The rollout may have to wait until another rollout ends its session. The other rollout may be in a long call."""


@dataclass(frozen=True, slots=True)
class WatchedActor:
    """An actor that the watchdog checks.

    `heartbeat` asks the actor for its work in progress. `give_up` replaces or restarts the actor, and receives the
    reason. `incarnation` is a different object for each new process of the actor.

    If the actor does not answer, the watchdog reports the work that waits for the actor. `waits_here` takes the work of
    any actor, and returns whether this work waits for the silent actor. If `waits_here` is None, the watchdog reports
    the silent actor's own work.
    """

    name: str
    heartbeat: Callable[[], Awaitable[list[WorkInProgress]]]
    give_up: Callable[[str], Awaitable[None]]
    incarnation: object
    waits_here: Callable[[WorkInProgress], bool] | None = None


@dataclass(slots=True)
class _ActorHealth:
    """Health of one process of an actor.

    `pending` is the `heartbeat` call in progress. `silent_checks` is the number of consecutive checks at which this
    call had no answer. `work` is the last answer.
    """

    incarnation: object
    pending: asyncio.Future[list[WorkInProgress]] | None = None
    silent_checks: int = 0
    work: list[WorkInProgress] = field(default_factory=list)
    is_reported: bool = False
    is_given_up: bool = False


@dataclass(frozen=True, slots=True)
class ActorSnapshot:
    """Last answer of an actor, and the number of seconds since the answer."""

    name: str
    work: tuple[WorkInProgress, ...]
    silent_s: float


class Watchdog:
    """Watchdog for the actors of one job.

    `watched` returns the current actors. `rollouts` returns the number of ended rollouts and the number of rollouts in
    flight (None: the job has no rollouts). `stage_deadlines_s` has the deadlines of rollout stages in seconds; stages
    without an entry have no deadline.
    """

    def __init__(
        self,
        watched: Callable[[], Sequence[WatchedActor]],
        rollouts: Callable[[], tuple[int, int]] | None,
        emit: Emit,
        timing: Timing = REAL_TIMING,
        give_up_s: float = GIVE_UP_S,
        stage_deadlines_s: Mapping[str, float] | None = None,
    ) -> None:
        self._stage_deadlines_s = stage_deadlines_s or {}
        self._watched = watched
        self._rollouts = rollouts
        self._emit = emit
        self._timing = timing
        self._give_up_s = give_up_s
        self._health: dict[str, _ActorHealth] = {}
        self._ended, self._idle_checks = 0, 0
        self._next_report_s: dict[str, float] = {}

    async def run(self) -> None:
        """Check the actors every CHECK_INTERVAL_S seconds until cancelled."""
        try:
            while True:
                await self.check()
                await self._timing.sleep(CHECK_INTERVAL_S)
        finally:
            for health in self._health.values():
                if health.pending is not None:
                    health.pending.cancel()

    @property
    def last_answers(self) -> list[ActorSnapshot]:
        """Last answers of all watched actors, as of the last check."""
        return [
            ActorSnapshot(name, tuple(health.work), health.silent_checks * CHECK_INTERVAL_S)
            for name, health in self._health.items()
        ]

    async def check(self) -> None:
        """Ask every actor for its work in progress, and report actors that have not answered earlier checks."""
        watched = {entry.name: entry for entry in self._watched()}
        for name, health in list(self._health.items()):
            if name not in watched or watched[name].incarnation is not health.incarnation:
                self._forget(name)
        for name, entry in watched.items():
            health = self._health.setdefault(name, _ActorHealth(entry.incarnation))
            if self._answered(name, health):
                health.pending, health.silent_checks = None, 0
            else:
                health.silent_checks += 1
            if health.pending is None:
                health.pending = asyncio.ensure_future(entry.heartbeat())
        for name, entry in watched.items():
            await self._handle_silence(entry, self._health[name])
        self._report_stalls(watched)

    def _forget(self, name: str) -> None:
        health = self._health.pop(name)
        if health.pending is not None:
            health.pending.cancel()

    def _answered(self, name: str, health: _ActorHealth) -> bool:
        """Return whether the actor has answered.

        The death of an actor counts as an answer, because callers of the actor handle it. An unreachable actor may be
        hanging, so it counts as silent.
        """
        if health.pending is None:
            return True
        if not health.pending.done():
            return False
        try:
            health.work = health.pending.result()
        except RftError as error:
            if error.details.get("kind") == UNREACHABLE:
                health.pending = None
                return False
            health.work = []
        else:
            if health.is_reported:
                self._emit(ActorRecovered(actor=name, silent_s=health.silent_checks * CHECK_INTERVAL_S))
        health.is_reported = health.is_given_up = False
        return True

    async def _handle_silence(self, entry: WatchedActor, health: _ActorHealth) -> None:
        silent_s = health.silent_checks * CHECK_INTERVAL_S
        if silent_s >= SILENT_S and not health.is_reported:
            health.is_reported = True
            is_waited_for = entry.waits_here is not None
            work = self._affected_work(entry, health)
            self._emit(ActorSilent(actor=entry.name, silent_s=silent_s, work=work, is_waited_for=is_waited_for))
        if silent_s >= self._give_up_s and not health.is_given_up:
            health.is_given_up = True
            await entry.give_up(f"the process has not answered for {silent_s:.0f} s")

    def _affected_work(self, entry: WatchedActor, health: _ActorHealth) -> tuple[str, ...]:
        """Return descriptions of the work that waits for a silent actor.

        If the actor has no function `waits_here`, return descriptions of the actor's own work.
        """
        if entry.waits_here is None:
            return _select_longest(health.work)
        everywhere = [work for other in self._health.values() for work in other.work]
        return _select_longest([work for work in everywhere if entry.waits_here(work)])

    def _report_stalls(self, watched: dict[str, WatchedActor]) -> None:
        """Report work that takes too long, and rollouts that make no progress."""
        work = [(name, doing) for name in watched for doing in self._health[name].work]
        for name, doing in work:
            if not doing.trace_id and self._is_report_due(doing.stage, doing.duration_s):
                self._emit(WorkStalled(actor=name, stage=doing.stage, duration_s=doing.duration_s))
        if self._rollouts is None:
            return
        ended, in_flight = self._rollouts()
        moved = ended != self._ended or not in_flight
        self._ended, self._idle_checks = ended, 0 if moved else self._idle_checks + 1
        idle_s = self._idle_checks * CHECK_INTERVAL_S
        rollouts = [(name, doing) for name, doing in work if doing.trace_id]
        if self._only_waits_for_long_calls([doing for _, doing in rollouts]):
            return
        if self._is_report_due("rollouts", idle_s):
            longest = sorted(rollouts, key=lambda p: -p[1].duration_s)[:TRACES_NAMED]
            shown = tuple(f"{doing} on {name}" for name, doing in longest)
            self._emit(RolloutsStalled(idle_s=idle_s, num_in_flight=in_flight, longest_rollouts=shown))

    def _only_waits_for_long_calls(self, rollouts: Sequence[WorkInProgress]) -> bool:
        """Return whether a call with a deadline over STALLED_S is in progress, and no rollout is stuck."""
        is_long_call = False
        for doing in rollouts:
            deadline_s = self._stage_deadlines_s.get(doing.stage, 0.0)
            if doing.duration_s < deadline_s:
                is_long_call |= deadline_s > STALLED_S
            elif doing.duration_s >= STALLED_S and doing.stage != SESSION_START:
                return False
        return is_long_call

    def _is_report_due(self, what: str, duration_s: float) -> bool:
        if duration_s < self._next_report_s.get(what, STALLED_S):
            return False
        self._next_report_s[what] = 2 * duration_s
        return True


def make_heartbeat(
    actor: Any, name: str, lost_error: type[DiscardError]
) -> Callable[[], Awaitable[list[WorkInProgress]]]:
    """Return a function that calls the actor's method `heartbeat`."""

    async def heartbeat() -> list[WorkInProgress]:
        doing: list[WorkInProgress] = await call_actor(actor.heartbeat.remote(), name, lost_error)
        return doing

    return heartbeat


def watch_restartable_actor(
    name: str, actor: Any, lost_error: type[DiscardError], waits_here: Callable[[WorkInProgress], bool]
) -> WatchedActor:
    """Return the watchdog's entry for a stateless actor that Ray restarts.

    If the actor hangs, the watchdog kills the actor's process.
    """

    async def restart(why: str) -> None:
        ray.kill(actor, no_restart=False)

    return WatchedActor(name, make_heartbeat(actor, name, lost_error), restart, actor, waits_here)


def _select_longest(doing: Sequence[WorkInProgress]) -> tuple[str, ...]:
    return tuple(str(entry) for entry in sorted(doing, key=lambda entry: -entry.duration_s)[:TRACES_NAMED])
