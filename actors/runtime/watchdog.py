"""Nothing hangs forever: every few seconds each actor of a job is asked what it is doing.

An actor that does not answer for half a minute is reported, with the rollouts that wait for it. After three minutes it
is given up: an engine is replaced, a helper restarted, and a learner rank killed, so that the learner starts again. An
actor that answers but makes no progress for minutes is reported too, and left to the deadlines of its work. Calls of
tools and graders whose own deadline is hours away are not reported.

Silence is counted in checks, not in seconds of a clock: after a pause of the driver itself no actor is suspected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from agent_rft.actors.runtime.calls import UNREACHABLE, ask
from agent_rft.actors.runtime.in_flight import Doing, Stage
from agent_rft.actors.runtime.timing import REAL_TIMING, Timing
from agent_rft.errors import Discard, RftError
from agent_rft.events import ActorAnswered, ActorSilent, RolloutsStalled, WorkStalled
from agent_rft.protocols import Emit

LOOK_EVERY_S = 5.0
SILENT_S = 30.0
"""A busy node may be slow to answer; garbage collections and first compilations take seconds."""
GIVE_UP_S = 180.0
STALLED_S = 300.0
"""The first report of slow work; the next one follows when it has taken twice as long."""
TRACES_NAMED = 5
SESSION_START: Stage = "session start"
"""The stage of a rollout that may wait until a rollout in a long call gives its session back."""


@dataclass(frozen=True, slots=True)
class Watched:
    """An actor to watch.

    `pulse` asks what it is doing. `waits_here` says whether a piece of engine work waits for this actor (None: report
    the actor's own work instead). `give_up` takes the reason. `incarnation` is a new object for each new process.
    """

    name: str
    pulse: Callable[[], Awaitable[list[Doing]]]
    give_up: Callable[[str], Awaitable[None]]
    incarnation: object
    waits_here: Callable[[Doing], bool] | None = None


@dataclass(slots=True)
class _Patient:
    """One incarnation of an actor: its pending `pulse` call, and for how many looks that has been pending."""

    incarnation: object
    asked: asyncio.Future[list[Doing]] | None = None
    looks: int = 0
    doing: list[Doing] = field(default_factory=list)
    named: bool = False
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """What an actor said last, and for how long it has not answered since."""

    name: str
    doing: tuple[Doing, ...]
    silent_s: float


class Watchdog:
    """Watches the actors of one job.

    `watched` returns the current actors; `rollouts` returns how many rollouts have ended and how many are in flight
    (None: the job has no rollouts). `stage_deadlines_s` has the seconds after which a stage of a rollout has ended by
    its own deadline; stages without an entry have none.
    """

    def __init__(
        self,
        watched: Callable[[], Sequence[Watched]],
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
        self._patients: dict[str, _Patient] = {}
        self._ended, self._idle_looks = 0, 0
        self._limits: dict[str, float] = {}

    async def run(self) -> None:
        """Look every LOOK_EVERY_S seconds until cancelled."""
        try:
            while True:
                await self.look()
                await self._timing.sleep(LOOK_EVERY_S)
        finally:
            for patient in self._patients.values():
                if patient.asked is not None:
                    patient.asked.cancel()

    @property
    def seen(self) -> list[Seen]:
        """Each actor that is watched, as of the last look."""
        return [
            Seen(name, tuple(patient.doing), patient.looks * LOOK_EVERY_S) for name, patient in self._patients.items()
        ]

    async def look(self) -> None:
        """Ask every actor for its pulse, and report those that have not answered an earlier one."""
        watched = {one.name: one for one in self._watched()}
        for name, patient in list(self._patients.items()):
            if name not in watched or watched[name].incarnation is not patient.incarnation:
                self._forget(name)
        for name, one in watched.items():
            patient = self._patients.setdefault(name, _Patient(one.incarnation))
            if self._answered(name, patient):
                patient.asked, patient.looks = None, 0
            else:
                patient.looks += 1
            if patient.asked is None:
                patient.asked = asyncio.ensure_future(one.pulse())
        for name, one in watched.items():
            await self._judge(one, self._patients[name])
        self._look_for_stalls(watched)

    def _forget(self, name: str) -> None:
        patient = self._patients.pop(name)
        if patient.asked is not None:
            patient.asked.cancel()

    def _answered(self, name: str, patient: _Patient) -> bool:
        """Whether the actor is not silent.

        A death counts as an answer, since the callers whose calls failed handle it. An unreachable actor may only
        hang, so that counts as silence.
        """
        if patient.asked is None:
            return True
        if not patient.asked.done():
            return False
        try:
            patient.doing = patient.asked.result()
        except RftError as error:
            if error.details.get("kind") == UNREACHABLE:
                patient.asked = None
                return False
            patient.doing = []
        else:
            if patient.named:
                self._emit(ActorAnswered(actor=name, silent_s=patient.looks * LOOK_EVERY_S))
        patient.named = patient.given_up = False
        return True

    async def _judge(self, one: Watched, patient: _Patient) -> None:
        silent_s = patient.looks * LOOK_EVERY_S
        if silent_s >= SILENT_S and not patient.named:
            patient.named = True
            waiting = one.waits_here is not None
            work = self._affected(one, patient)
            self._emit(ActorSilent(actor=one.name, silent_s=silent_s, work=work, waiting=waiting))
        if silent_s >= self._give_up_s and not patient.given_up:
            patient.given_up = True
            await one.give_up(f"it has not answered for {silent_s:.0f} s")

    def _affected(self, one: Watched, patient: _Patient) -> tuple[str, ...]:
        """The work that waits for a silent actor, or that the actor itself was doing."""
        if one.waits_here is None:
            return _longest(patient.doing)
        everywhere = [doing for other in self._patients.values() for doing in other.doing]
        return _longest([doing for doing in everywhere if one.waits_here(doing)])

    def _look_for_stalls(self, watched: dict[str, Watched]) -> None:
        """Report work that takes too long although its actor answers."""
        work = [(name, doing) for name in watched for doing in self._patients[name].doing]
        for name, doing in work:
            if not doing.trace_id and self._too_long(doing.stage, doing.for_s):
                self._emit(WorkStalled(actor=name, stage=doing.stage, for_s=doing.for_s))
        if self._rollouts is None:
            return
        ended, in_flight = self._rollouts()
        moved = ended != self._ended or not in_flight
        self._ended, self._idle_looks = ended, 0 if moved else self._idle_looks + 1
        idle_s = self._idle_looks * LOOK_EVERY_S
        rollouts = [(name, doing) for name, doing in work if doing.trace_id]
        if self._only_waits_for_long_calls([doing for _, doing in rollouts]):
            return
        if self._too_long("rollouts", idle_s):
            longest = sorted(rollouts, key=lambda p: -p[1].for_s)[:TRACES_NAMED]
            shown = tuple(f"{doing} on {name}" for name, doing in longest)
            self._emit(RolloutsStalled(idle_s=idle_s, num_in_flight=in_flight, longest=shown))

    def _only_waits_for_long_calls(self, rollouts: Sequence[Doing]) -> bool:
        """Whether a call that may take longer than STALLED_S is in progress, and no other rollout is stuck."""
        is_long_call = False
        for doing in rollouts:
            deadline_s = self._stage_deadlines_s.get(doing.stage, 0.0)
            if doing.for_s < deadline_s:
                is_long_call |= deadline_s > STALLED_S
            elif doing.for_s >= STALLED_S and doing.stage != SESSION_START:
                return False
        return is_long_call

    def _too_long(self, what: str, for_s: float) -> bool:
        if for_s < self._limits.get(what, STALLED_S):
            return False
        self._limits[what] = 2 * for_s
        return True


def pulse_of(actor: Any, name: str, lost: type[Discard]) -> Callable[[], Awaitable[list[Doing]]]:
    """A function that calls the actor's method `pulse`."""

    async def pulse() -> list[Doing]:
        doing: list[Doing] = await ask(actor.pulse.remote(), name, lost)
        return doing

    return pulse


def watched_helper(name: str, actor: Any, lost: type[Discard], waits_here: Callable[[Doing], bool]) -> Watched:
    """A stateless actor that Ray restarts: giving it up kills it, so that Ray starts a new process."""

    async def restart(why: str) -> None:
        ray.kill(actor, no_restart=False)

    return Watched(name, pulse_of(actor, name, lost), restart, actor, waits_here)


def _longest(doing: Sequence[Doing]) -> tuple[str, ...]:
    return tuple(str(one) for one in sorted(doing, key=lambda one: -one.for_s)[:TRACES_NAMED])
