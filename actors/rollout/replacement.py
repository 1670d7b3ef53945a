"""Replacement of engines: each seat of the fleet gets another engine when the one that it has fails or drifts.

An engine takes rollouts only with the published weights. A budget bounds the replacements: a crash loop ends the job.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Container, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import ray

from agent_rft.actors.rollout.assignment import EngineLoad
from agent_rft.actors.runtime.calls import LOST, UNREACHABLE, ask
from agent_rft.actors.runtime.channel import Channel
from agent_rft.actors.weights.sync import WeightsLost, WeightSync
from agent_rft.errors import EngineFailed, Halted
from agent_rft.events import EngineJoined, EngineReplaced, EngineRestarted, EngineUnstable, EngineWaiting
from agent_rft.protocols import Emit

PLACEMENT_TIMEOUT_S = 900.0
"""Timeout for the cluster to have room for an engine while no other engine works."""
TURN_TIMEOUT_S = 300.0
"""Moving the weights of an engine between GPU and host takes seconds."""
REPLACEMENTS_PER_ENGINE = 3
UNSTABLE_AFTER = 3
"""Replacements in a row of one engine after which it is reported as unstable, and after as many again."""


class ReplacementBudget:
    """Counts replacements of the engines of one fleet, and replacements that were lost while they started.

    `total` counts since the start of the job. The limit applies to those since the last weight update.
    """

    def __init__(self, num_engines: int, emit: Emit) -> None:
        self._max = REPLACEMENTS_PER_ENGINE * num_engines
        self._emit = emit
        self.total = 0
        self._since_update = 0
        self._version = -1
        self._in_a_row: Counter[str] = Counter()
        self._updated: set[str] = set()  # the engines that took the last update and were not replaced since

    def count(self, engine: str, reason: str) -> None:
        """Count a replacement of `engine`. Emits EngineUnstable if it never works from one update to the next."""
        self.total += 1
        self._since_update += 1
        self._updated.discard(engine)
        self._in_a_row[engine] += 1
        if self._in_a_row[engine] % UNSTABLE_AFTER == 0:
            self._emit(EngineUnstable(engine=engine, times=self._in_a_row[engine], reason=reason))

    def weights_updated(self, version: int, engines: Collection[str]) -> None:
        """Count from zero again, since `engines` took the weights of `version`.

        Does nothing if no engine took them, or if the version was published before: a crash loop must not renew its
        own budget.
        """
        if not engines or version <= self._version:
            return
        self._version = version
        self._since_update = 0
        for stable in self._updated.intersection(engines):
            del self._in_a_row[stable]
        self._updated = set(engines)

    def check(self, engine: str, reason: str) -> None:
        """Check whether `engine` may be started again.

        Raises:
            Halted: There were too many replacements since the last weight update.
        """
        if self._since_update > self._max:
            what = (
                f"{engine} was replaced too often: engines were replaced {self._since_update} times since the last "
                f"weight update, and {self._max} are allowed"
            )
            raise Halted(f"{what}; the last reason: {reason}", public=what)


@dataclass(slots=True, eq=False)
class EngineSeat:
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


class EngineSeats:
    """The seats of a fleet, and the start, sleep and replacement of their engines.

    The arguments are those of `Fleet`. `rollout_s` bounds one rollout on an engine.
    """

    def __init__(
        self,
        spawn: Callable[[int], Any],
        size: int,
        emit: Emit,
        on_lost: Callable[[str], None],
        placed: Callable[[int], Awaitable[None]],
        kill: Callable[[Any], None],
        start_timeout_s: float,
        rollout_s: float,
    ) -> None:
        self.seats = [EngineSeat(i, None) for i in range(size)]
        self.budget = ReplacementBudget(size, emit)
        self.is_asleep = False
        self.publishing = asyncio.Lock()
        """Held while there are no published weights, because they are collected."""
        self._spawn = spawn
        self._emit = emit
        self._on_lost = on_lost
        self._placed = placed
        self._kill = kill
        self._start_timeout_s = start_timeout_s
        self._rollout_s = rollout_s
        self._sync: WeightSync | None = None
        self._changed = asyncio.Condition()
        self._refilling: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None

    async def start(self, at_start: Container[int] | None = None) -> None:
        """Start the engines of the seats `at_start` (None: all) concurrently.

        The others are started as the cluster gets room for them, with the weights published by then.

        Raises:
            EngineFailed: an engine did not start.
        """
        for seat in self.seats:
            if at_start is not None and seat.index not in at_start:
                self._emit(EngineWaiting(engine=seat.name))
                self._in_background(self._refill(seat, "it joins"))
        await asyncio.gather(*(self._fill_in_turn(s) for s in self.seats if at_start is None or s.index in at_start))

    def connect(self, sync: WeightSync) -> None:
        """Set where engines that start get the published weights."""
        self._sync = sync

    @property
    def ready(self) -> list[EngineSeat]:
        """The seats whose engines take rollouts."""
        return [seat for seat in self.seats if seat.ready]

    @asynccontextmanager
    async def any_ready(self) -> AsyncIterator[list[EngineSeat]]:
        """Context manager that waits for a ready engine and returns the ready seats; its block must not await.

        Raises:
            Halted: An engine could not be started.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure or self.ready)
            if self._failure is not None:
                raise self._failure
            yield self.ready

    async def notify(self) -> None:
        """Let those go on that wait for other weights or another turn."""
        async with self._changed:
            self._changed.notify_all()

    async def all_ready(self) -> None:
        """Wait until each seat has an engine that samples with the published weights."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure or all(seat.ready for seat in self.seats))
        if self._failure is not None:
            raise self._failure

    async def sleep(self) -> None:
        """Let all engines give their GPUs back; only for `Turns`. Those that start are waited for, and no other starts.

        One that cannot sleep is replaced, which frees its GPUs, too.
        """
        async with self._changed:
            self.is_asleep = True
            await self._changed.wait_for(lambda: not any(seat.is_loading for seat in self.seats))
        await self._on_each(lambda worker: worker.sleep.remote(), "it did not sleep")

    async def wake(self) -> None:
        """Let all engines go on; only for `Turns`."""
        await self._on_each(lambda worker: worker.wake.remote(), "it did not wake up")
        async with self._changed:
            self.is_asleep = False
            self._changed.notify_all()

    async def _on_each(self, call: Callable[[Any], Any], why: str) -> None:
        async def ask_one(seat: EngineSeat) -> None:
            worker = seat.worker
            try:
                await ask(call(worker), seat.name, EngineFailed, TURN_TIMEOUT_S)
            except EngineFailed as error:
                await self.replace(seat, worker, f"{why}: {error.message}")

        await asyncio.gather(*(ask_one(seat) for seat in self.seats if seat.worker is not None))

    async def shutdown(self) -> None:
        """Stop all engines; returns when their processes are gone."""
        for task in self._refilling:
            task.cancel()
        await asyncio.gather(*(self._stop(seat.worker) for seat in self.seats if seat.worker is not None))
        self.seats.clear()

    async def _fill_in_turn(self, seat: EngineSeat) -> None:
        """As `_fill`, in the engines' turn, which lasts until then."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self.is_asleep)
            seat.is_loading = True
        try:
            await self._fill(seat)
        finally:
            async with self._changed:
                seat.is_loading = False
                self._changed.notify_all()

    async def _fill(self, seat: EngineSeat) -> None:
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

    async def _catch_up(self, seat: EngineSeat) -> None:
        """Load the last published version into a seat's engine, if there is one, and let it take rollouts."""
        while True:
            async with self.publishing:  # during `collect` there are no published weights
                published = self._sync.last if self._sync is not None else None
            if self._sync is not None and published is not None:
                with suppress(WeightsLost):  # the learner is found to be lost soon, and publishes them again
                    outcome = await self._sync.catch_up(published, seat.worker, len(self.seats))
                    if isinstance(outcome, EngineFailed):
                        raise outcome
            async with self._changed:
                if self._sync is not None and self._sync.is_lost:
                    await self._published_again(self._sync, seat)
                elif self._sync is None or self._sync.last is published:  # no newer version came meanwhile
                    seat.ready = True
                    self._changed.notify_all()
                    return

    async def _published_again(self, sync: WeightSync, seat: EngineSeat) -> None:
        """Wait for lost weights; a learner that starts to publish them may let the seat's engine sleep meanwhile."""
        seat.is_loading = False
        self._changed.notify_all()
        await self._changed.wait_for(lambda: not sync.is_lost and not self.is_asleep)
        seat.is_loading = True

    async def replace(self, seat: EngineSeat, worker: Any, why: str) -> None:
        """Fence a worker, and start another in its seat in the background; a second call for it does nothing."""
        if seat.worker is not worker or not seat.ready:
            return
        seat.ready = False
        self._emit(EngineReplaced(engine=seat.name, reason=why))
        self.budget.count(seat.name, why)
        self._on_lost(seat.name)
        self._kill(worker)
        self._in_background(self._refill(seat, why))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._refilling.add(task)
        task.add_done_callback(self._refilling.discard)

    async def _refill(self, seat: EngineSeat, why: str) -> None:
        try:
            while True:
                self.budget.check(seat.name, why)
                await self._place(seat)
                try:
                    await self._fill_in_turn(seat)
                    break
                except EngineFailed as error:
                    if error.details.get("kind") not in (LOST, UNREACHABLE):
                        raise
                    why = error.message  # its node may have been dying without Ray knowing it yet
                    self._emit(EngineRestarted(engine=seat.name, reason=why))
                    self.budget.count(seat.name, why)
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

    async def _place(self, seat: EngineSeat) -> None:
        """Wait for room in the cluster: without limit while other engines work, else for PLACEMENT_TIMEOUT_S."""
        placed = asyncio.ensure_future(self._placed(seat.index))
        try:
            while not (await asyncio.wait({placed}, timeout=PLACEMENT_TIMEOUT_S))[0]:
                if not any(other.ready for other in self.seats):
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
