"""The fleet of engines: runs rollouts on engines, and replaces engines that fail or drift.

Each started rollout returns exactly once, graded or discarded. An engine that died or hangs, or whose log-probabilities
differ from the learner's after an update, is fenced and replaced by one with the published weights.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import ray
from numpy.typing import NDArray

from agent_rft.actors.endpoints.stats import endpoint_metrics
from agent_rft.actors.rollout.assignment import Assign, EngineLoad, group_of
from agent_rft.actors.rollout.board import Board
from agent_rft.actors.rollout.busy import BusyShare
from agent_rft.actors.rollout.canary import Canary, Logprobs
from agent_rft.actors.rollout.episode import RolloutRequest
from agent_rft.actors.rollout.groups import Groups
from agent_rft.actors.rollout.holdback import Holdback
from agent_rft.actors.rollout.replacement_budget import ReplacementBudget
from agent_rft.actors.rollout.worker import run_on_worker
from agent_rft.actors.runtime.calls import LOST, QUICK_S, UNREACHABLE, ask
from agent_rft.actors.runtime.channel import Channel
from agent_rft.actors.runtime.turns import Turns
from agent_rft.actors.runtime.watchdog import Watched, pulse_of
from agent_rft.actors.weights.shared_memory import remove_leftovers
from agent_rft.actors.weights.start_timeout import START_TIMEOUT_S
from agent_rft.actors.weights.sync import WeightsLost, WeightSync
from agent_rft.errors import Discard, EngineFailed, Halted
from agent_rft.events import EngineJoined, EngineReplaced, EngineRestarted, EngineWaiting, WeightsNotCompared
from agent_rft.protocols import Emit
from agent_rft.spec.job import RolloutLimits
from agent_rft.types import Discarded, Group, GroupRequest, Rollout, SyncReport

PLACEMENT_TIMEOUT_S = 900.0
"""Timeout for the cluster to have room for an engine while no other engine works."""
BUSY_TIMEOUT_S = 5.0
"""How long an engine may take to report how busy it was; then the step goes on without."""
TURN_TIMEOUT_S = 300.0
"""Moving the weights of an engine between GPU and host takes seconds."""
ROLLOUT_GRACE_S = 60.0
"""Lets a rollout's own deadline expire first, since its error says more."""


EndpointSource = Callable[[], Awaitable[dict[str, dict[str, Any]]]]


async def _has_room(index: int) -> None:
    pass


@dataclass(slots=True, eq=False)
class _Seat:
    """A seat in the fleet, and the worker that currently has it.

    `is_loading` means that the worker's engine starts or loads weights.
    """

    index: int
    worker: Any
    load: EngineLoad = field(default_factory=EngineLoad)
    ready: bool = False
    is_loading: bool = False
    channel: Channel = field(init=False)

    @property
    def name(self) -> str:
        return f"engine-{self.index}"


@dataclass(frozen=True, slots=True)
class EngineState:
    """State of an engine, for display.

    An engine `waits` for room in the cluster, and is `asleep` while the learner has its GPUs.
    """

    name: str
    state: Literal["waits", "starts", "asleep", "ready"]
    rollouts: int


class Fleet:
    """Implements `agent_rft.protocols.Rollouts` over rollout workers.

    `spawn(i)` makes the actor of seat i, not started. `assign` chooses the engine of each rollout. `emit` reports
    engines that are replaced and rollouts that are held back, `on_lost` is called for each engine that is lost with all
    its rollouts. `endpoints` return the stats of endpoints by name. `placed(i)` returns when the cluster has room for
    seat i. `kill` ends an actor. `start_timeout_s` bounds the start of an engine that has its resources.
    """

    def __init__(
        self,
        spawn: Callable[[int], Any],
        size: int,
        assign: Assign,
        canary_limit: float,
        limits: RolloutLimits,
        emit: Emit,
        on_lost: Callable[[str], None] = lambda name: None,
        endpoints: Sequence[EndpointSource] = (),
        placed: Callable[[int], Awaitable[None]] = _has_room,
        kill: Callable[[Any], None] = ray.kill,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self._spawn = spawn
        self._placed = placed
        self._kill = kill
        self._assign = assign
        self._start_timeout_s = start_timeout_s
        self._canary = Canary(canary_limit)
        self._sync: WeightSync | None = None
        self._turns: Turns | None = None
        self._asleep = False
        self._emit = emit
        self._on_lost = on_lost
        self._endpoints = endpoints
        self._rollout_s = limits.rollout_timeout_s + limits.wait_timeout_s + ROLLOUT_GRACE_S
        self._groups = Groups(self._run, limits, Holdback(limits.max_failure_rate, emit), emit)
        self._seats = [_Seat(i, None) for i in range(size)]
        self._changed = asyncio.Condition()
        self._collecting = asyncio.Lock()
        self._busy = BusyShare()
        self._refilling: set[asyncio.Task[None]] = set()
        self._replacements = ReplacementBudget(size, emit)
        self._failure: Exception | None = None

    async def start(self, at_start: Container[int] | None = None) -> None:
        """Start the engines of the seats `at_start` (None: all) concurrently.

        The others are started as the cluster gets room for them, with the weights published by then.

        Raises:
            EngineFailed: an engine did not start.
        """
        for seat in self._seats:
            if at_start is not None and seat.index not in at_start:
                self._emit(EngineWaiting(engine=seat.name))
                self._in_background(self._refill(seat, "it joins"))
        await asyncio.gather(*(self._fill_in_turn(s) for s in self._seats if at_start is None or s.index in at_start))

    def connect(self, sync: WeightSync, learner_logprobs: Logprobs) -> None:
        """Set where `publish` gets weights and what it compares engines with; only needed for `publish`."""
        self._sync = sync
        self._canary.connect(learner_logprobs)

    def share(self, turns: Turns) -> None:
        """From now on `publish` gives the learner its turn, and takes the engines'."""
        self._turns = turns

    async def sleep(self) -> None:
        """Let all engines give their GPUs back; only for `Turns`. Those that start are waited for, and no other starts.

        One that cannot sleep is replaced, which frees its GPUs, too.
        """
        async with self._changed:
            self._asleep = True
            await self._changed.wait_for(lambda: not any(seat.is_loading for seat in self._seats))
        await self._on_each(lambda worker: worker.sleep.remote(), "it did not sleep")

    async def wake(self) -> None:
        """Let all engines go on; only for `Turns`."""
        await self._on_each(lambda worker: worker.wake.remote(), "it did not wake up")
        async with self._changed:
            self._asleep = False
            self._changed.notify_all()

    async def _on_each(self, call: Callable[[Any], Any], why: str) -> None:
        async def ask_one(seat: _Seat) -> None:
            worker = seat.worker
            try:
                await ask(call(worker), seat.name, EngineFailed, TURN_TIMEOUT_S)
            except EngineFailed as error:
                await self._replace(seat, worker, f"{why}: {error.message}")

        await asyncio.gather(*(ask_one(seat) for seat in self._seats if seat.worker is not None))

    async def sample(self, request: GroupRequest) -> Group:
        """Run a group; failures are retried as `limits` says."""
        return await self._groups.sample(request)

    async def counts(self) -> dict[str, float]:
        """The metrics of rollouts, endpoints and engines; those of a process that is restarting are left out."""
        metrics = self._groups.account.metrics() | endpoint_metrics(await self.endpoint_stats())
        share = self._busy.of(await self._busy_s())
        return metrics if share is None else metrics | {"engine_busy_share": share}

    async def _busy_s(self) -> dict[Any, float]:
        """For how long each engine was busy, by its actor. Shared engines are left out: other jobs use them, too."""
        seats = [seat for seat in self._seats if seat.ready]
        refs = [(seat.worker, seat.worker.stats.remote(), seat.name) for seat in seats]

        async def busy_s(ref: Any, name: str) -> float | None:
            with suppress(EngineFailed):
                found: float | None = (await ask(ref, name, EngineFailed, BUSY_TIMEOUT_S)).get("busy_s")
                return found
            return None

        found = await asyncio.gather(*(busy_s(ref, name) for _, ref, name in refs))
        return {worker: busy for (worker, *_), busy in zip(refs, found, strict=True) if busy is not None}

    async def endpoint_stats(self) -> dict[str, dict[str, Any]]:
        """EndpointClient.stats of all tools and graders; those of a process that is restarting are left out."""
        found: dict[str, dict[str, Any]] = {}
        for source in self._endpoints:
            with suppress(Discard):
                found |= await source()
        return found

    def engines(self) -> list[EngineState]:
        """What the engine of each seat does now."""
        return [EngineState(seat.name, self._state_of(seat), seat.load.total) for seat in self._seats]

    def _state_of(self, seat: _Seat) -> Literal["waits", "starts", "asleep", "ready"]:
        if not seat.ready:
            return "waits" if seat.worker is None else "starts"
        return "asleep" if self._asleep else "ready"

    def live(self) -> dict[str, float]:
        """The current state of rollouts and engines, for a Recorder; may be called from another thread."""
        live = self._groups.account.live() | {"engine_replacements": float(self._replacements.total)}
        for seat in self._seats:
            live[f"engine/{seat.name}/ready"] = float(seat.ready)
            live[f"engine/{seat.name}/rollouts"] = float(seat.load.total)
        return live

    async def publish(self, version: int) -> SyncReport:
        """Load the learner's weights into all engines, and compare each with the learner: checksums, and a canary."""
        if self._sync is None:
            raise ValueError("call connect() before publish()")
        started = time.monotonic()
        if self._turns is not None:
            await self._turns.to_learner()
        async with self._collecting:
            published = await self._sync.collect(version)
        expected = await self._canary.learner_logprobs()
        if self._turns is not None:
            await self._turns.to_engines()
        async with self._changed:
            self._changed.notify_all()  # engines that start wait for it if the one before was lost
        seats, known = [seat for seat in self._seats if seat.ready], self._sync.untaken
        outcomes = await self._sync.deliver(published, [seat.worker for seat in seats])
        if (untaken := self._sync.untaken) and not known:
            self._emit(WeightsNotCompared(tensors=untaken[:3], num_tensors=len(untaken)))
        fenced = {s: o.message for s, o in zip(seats, outcomes, strict=True) if isinstance(o, EngineFailed)}
        gaps = await self._canary_gaps([seat for seat in seats if seat not in fenced], expected)
        differs = f"it differs from the learner after version {version}"
        fenced |= {seat: differs for seat, gap in gaps if not self._canary.accepts(gap)}
        self._replacements.weights_updated(version, [seat.name for seat in seats if seat not in fenced])
        for seat, why in fenced.items():
            await self._replace(seat, seat.worker, why)
        pauses = [outcome for outcome in outcomes if not isinstance(outcome, EngineFailed)]
        return SyncReport(
            version=version,
            pause_s=max(pauses, default=0.0),
            total_s=time.monotonic() - started,
            num_bytes=published.num_bytes,
            fenced=tuple(seat.name for seat in fenced),
            canary_gap=max((gap for seat, gap in gaps if seat not in fenced), default=0.0),
        )

    async def all_ready(self) -> None:
        """Wait until each seat has an engine that samples with the published weights."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure or all(seat.ready for seat in self._seats))
        if self._failure is not None:
            raise self._failure

    async def stats(self) -> list[dict[str, Any]]:
        seats = [seat for seat in self._seats if seat.ready]
        return [await ask(seat.worker.stats.remote(), seat.name, EngineFailed, QUICK_S) for seat in seats]

    def watched(self) -> list[Watched]:
        """The engines that take rollouts, for the watchdog; giving one up replaces it."""
        return [
            Watched(s.name, pulse_of(s.worker, s.name, EngineFailed), partial(self._replace, s, s.worker), s.worker)
            for s in self._seats
            if s.ready
        ]

    @property
    def board(self) -> Board:
        """What the rollouts are doing now."""
        return self._groups.board

    def progress(self) -> tuple[int, int]:
        """The numbers of rollouts that have ended since the start, and that are in flight."""
        account = self._groups.account
        return account.started - account.in_flight, account.in_flight

    async def shutdown(self) -> None:
        """Stop all engines; returns when their processes are gone."""
        for task in self._refilling:
            task.cancel()
        await asyncio.gather(*(self._stop(seat.worker) for seat in self._seats if seat.worker is not None))
        self._seats.clear()
        remove_leftovers()

    # -- rollouts ------------------------------------------------------------------------------------------------------

    async def _run(self, request: RolloutRequest) -> Rollout | Discarded:
        """Run one rollout on the engine that `assign` chooses; waits while no engine is ready."""
        group = group_of(request)
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure or any(seat.ready for seat in self._seats))
            if self._failure is not None:
                raise self._failure
            ready = [seat for seat in self._seats if seat.ready]
            seat = ready[self._assign([seat.load for seat in ready], group)]
            worker, channel, load = seat.worker, seat.channel, seat.load
            load.add(group)
        try:
            outcome = await run_on_worker(channel, request)
        except EngineFailed as error:
            outcome = Discarded("", request.task.row_id, request.sample, error.reason, error.message)
        finally:
            load.remove(group)
        if isinstance(outcome, Rollout):
            self._canary.observe(outcome)
        elif outcome.reason == EngineFailed.reason:
            await self._replace(seat, worker, outcome.message)
        return outcome

    # -- engines -------------------------------------------------------------------------------------------------------

    async def _fill_in_turn(self, seat: _Seat) -> None:
        """As `_fill`, in the engines' turn, which lasts until then."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._asleep)
            seat.is_loading = True
        try:
            await self._fill(seat)
        finally:
            async with self._changed:
                seat.is_loading = False
                self._changed.notify_all()

    async def _fill(self, seat: _Seat) -> None:
        """Start a worker for a seat, and load the last published version into it."""
        seat.worker, seat.load = self._spawn(seat.index), EngineLoad()
        seat.channel = Channel(seat.worker, seat.name, EngineFailed, self._rollout_s)
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await ask(seat.worker.start.remote(), seat.name, EngineFailed, self._start_timeout_s)
                await ask(seat.worker.init_transport.remote({}), seat.name, EngineFailed)
                await seat.channel.connect()
        except TimeoutError:
            raise EngineFailed(f"{seat.name} did not start within {self._start_timeout_s:g} s") from None
        await self._catch_up(seat)

    async def _catch_up(self, seat: _Seat) -> None:
        """Load the last published version into a seat's engine, if there is one, and let it take rollouts."""
        while True:
            async with self._collecting:  # during `collect` there are no published weights
                published = self._sync.last if self._sync is not None else None
            if self._sync is not None and published is not None:
                with suppress(WeightsLost):  # the learner is found to be lost soon, and publishes them again
                    outcome = await self._sync.catch_up(published, seat.worker, len(self._seats))
                    if isinstance(outcome, EngineFailed):
                        raise outcome
            async with self._changed:
                if self._sync is not None and self._sync.is_lost:
                    await self._published_again(self._sync, seat)
                elif self._sync is None or self._sync.last is published:  # no newer version came meanwhile
                    seat.ready = True
                    self._changed.notify_all()
                    return

    async def _published_again(self, sync: WeightSync, seat: _Seat) -> None:
        """Wait for lost weights; a learner that starts to publish them may let the seat's engine sleep meanwhile."""
        seat.is_loading = False
        self._changed.notify_all()
        await self._changed.wait_for(lambda: not sync.is_lost and not self._asleep)
        seat.is_loading = True

    async def _replace(self, seat: _Seat, worker: Any, why: str) -> None:
        """Fence a worker, and start another in its seat in the background; a second call for it does nothing."""
        if seat.worker is not worker or not seat.ready:
            return
        seat.ready = False
        self._emit(EngineReplaced(engine=seat.name, reason=why))
        self._replacements.count(seat.name, why)
        self._on_lost(seat.name)
        self._kill(worker)
        self._in_background(self._refill(seat, why))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._refilling.add(task)
        task.add_done_callback(self._refilling.discard)

    async def _refill(self, seat: _Seat, why: str) -> None:
        try:
            while True:
                self._replacements.check(seat.name, why)
                await self._place(seat)
                try:
                    await self._fill_in_turn(seat)
                    break
                except EngineFailed as error:
                    if error.details.get("kind") not in (LOST, UNREACHABLE):
                        raise
                    why = error.message  # its node may have been dying without Ray knowing it yet
                    self._emit(EngineRestarted(engine=seat.name, reason=why))
                    self._replacements.count(seat.name, why)
                    self._kill(seat.worker)
            self._emit(EngineJoined(engine=seat.name))
        except Exception as error:  # noqa: BLE001 - all callers that wait for an engine must get it
            what = f"{seat.name} could not be started"
            failure = error if isinstance(error, Halted) else Halted(f"{what}: {error}", public=what)
            if failure is not error:
                failure.__cause__ = error
            async with self._changed:
                self._failure = failure
                self._changed.notify_all()

    async def _place(self, seat: _Seat) -> None:
        """Wait for room in the cluster: without limit while other engines work, else for PLACEMENT_TIMEOUT_S."""
        placed = asyncio.ensure_future(self._placed(seat.index))
        try:
            while not (await asyncio.wait({placed}, timeout=PLACEMENT_TIMEOUT_S))[0]:
                if not any(other.ready for other in self._seats):
                    raise EngineFailed(f"the cluster had no free resources for it within {PLACEMENT_TIMEOUT_S:g} s")
            placed.result()
        finally:
            placed.cancel()

    async def _stop(self, worker: Any) -> None:
        try:
            async with asyncio.timeout(15):
                await worker.shutdown.remote()
        except (TimeoutError, ray.exceptions.RayError):
            pass  # killed below either way
        self._kill(worker)

    async def _canary_gaps(
        self, seats: Sequence[_Seat], expected: NDArray[np.float32] | None
    ) -> list[tuple[_Seat, float]]:
        """Each engine's gap to the learner's log-probabilities; no gaps without `expected`."""
        if expected is None:
            return []
        gaps = await asyncio.gather(*(self._canary.gap(seat.worker, seat.name, expected) for seat in seats))
        return list(zip(seats, gaps, strict=True))
