"""Replacement of engines that fail, or whose weights or log-probabilities differ from the learner's.

Each engine has a slot in the fleet, which gets the new engine. An engine takes rollouts only after it has loaded the
published weights. A budget limits the number of replacements, so that engines that crash repeatedly end the job.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Container, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray

from agent_rft.actors.rollout.engine_assignment import EngineLoad
from agent_rft.actors.runtime.actor_calls import LOST, UNREACHABLE, call_actor
from agent_rft.actors.runtime.channel import ChannelClient
from agent_rft.actors.weights.weight_sync import WeightsLost, WeightSync
from agent_rft.errors import EngineFailed, TrainingHalted
from agent_rft.events import EngineJoined, EngineReplaced, EngineRestarted, EngineUnstable, EngineWaiting
from agent_rft.loop_protocols import Emit

PLACEMENT_TIMEOUT_S = 900.0
"""Maximum time that an engine waits for cluster resources while no other engine is ready."""
OFFLOAD_TIMEOUT_S = 300.0
"""Timeout for moving an engine's weights between GPU and host."""
REPLACEMENTS_PER_ENGINE = 3
UNSTABLE_AFTER = 3
"""Number of consecutive replacements after which an engine is reported as unstable."""


class ReplacementBudget:
    """Counter of a fleet's engine replacements, with a limit. Engines that are lost while they start count, too.

    `total` is the number of replacements since the start of the job. The limit applies to the replacements since the
    last weight update.
    """

    def __init__(self, num_engines: int, emit: Emit) -> None:
        self._max_replacements = REPLACEMENTS_PER_ENGINE * num_engines
        self._emit = emit
        self.total = 0
        self._since_update = 0
        self._version = -1
        self._num_consecutive: Counter[str] = Counter()
        self._updated_engines: set[str] = set()  # engines that loaded the last update and have not been replaced since

    def count(self, engine: str, reason: str) -> None:
        """Count a replacement of `engine`. Emits EngineUnstable after every UNSTABLE_AFTER consecutive replacements."""
        self.total += 1
        self._since_update += 1
        self._updated_engines.discard(engine)
        self._num_consecutive[engine] += 1
        if self._num_consecutive[engine] % UNSTABLE_AFTER == 0:
            self._emit(EngineUnstable(engine=engine, times=self._num_consecutive[engine], reason=reason))

    def reset(self, version: int, engines: Collection[str]) -> None:
        """Set the number of replacements since the last weight update to 0, after `engines` have loaded `version`.

        Does nothing if `engines` is empty, or if `version` is not newer than at the last reset.
        """
        if not engines or version <= self._version:
            return
        self._version = version
        self._since_update = 0
        for stable in self._updated_engines.intersection(engines):
            del self._num_consecutive[stable]
        self._updated_engines = set(engines)

    def check(self, engine: str, reason: str) -> None:
        """Check that `engine` may be replaced again; `reason` explains the last replacement.

        Raises:
            TrainingHalted: There were too many replacements since the last weight update.
        """
        if self._since_update > self._max_replacements:
            what = (
                f"{engine} cannot be replaced again: engines were replaced {self._since_update} times since the last "
                f"weight update, but only {self._max_replacements} replacements are allowed"
            )
            raise TrainingHalted(f"{what}; the last reason: {reason}", public_message=what)


@dataclass(slots=True, eq=False)
class FleetSlot:
    """Slot for one engine in a fleet, with the worker that currently runs the engine.

    `is_loading` is True while the worker's engine starts or loads weights. `lacks_weights` is True from an offload that
    discarded the engine's weights until the next reload.
    """

    index: int
    worker: Any
    load: EngineLoad = field(default_factory=EngineLoad)
    is_ready: bool = False
    is_loading: bool = False
    lacks_weights: bool = False
    channel: ChannelClient = field(init=False)

    @property
    def name(self) -> str:
        return f"engine-{self.index}"


class FleetSlots:
    """All slots of a fleet, with methods that start, offload and replace their engines.

    The arguments have the same meaning as in `Fleet`. `rollout_s` is the time limit of one rollout on an engine.
    """

    def __init__(
        self,
        spawn: Callable[[int], Any],
        size: int,
        emit: Emit,
        on_lost: Callable[[str], None],
        wait_for_resources: Callable[[int], Awaitable[None]],
        kill: Callable[[Any], None],
        start_timeout_s: float,
        rollout_s: float,
    ) -> None:
        self.slots = [FleetSlot(i, None) for i in range(size)]
        self.budget = ReplacementBudget(size, emit)
        self.is_offloaded = False
        self.awaits_update = False
        """Whether the caller of `reload` loads published weights into all ready engines afterwards."""
        self.publish_lock = asyncio.Lock()
        """Lock that is held while new weights are collected. While it is held, no published weights can be read."""
        self._spawn = spawn
        self._emit = emit
        self._on_lost = on_lost
        self._resources_free = wait_for_resources
        self._kill = kill
        self._start_timeout_s = start_timeout_s
        self._rollout_s = rollout_s
        self._sync: WeightSync | None = None
        self._state_changed = asyncio.Condition()
        self._restarts: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None

    async def start(self, at_start: Container[int] | None = None) -> None:
        """Start the engines whose slot indexes are in `at_start`, or all engines if it is None.

        The remaining engines start later, when the cluster has resources for them.

        Raises:
            EngineFailed: An engine with a slot index in `at_start` did not start.
        """
        for slot in self.slots:
            if at_start is not None and slot.index not in at_start:
                self._emit(EngineWaiting(engine=slot.name))
                self._start_in_background(self._restart_engine(slot, "the engine waited for resources"))
        await asyncio.gather(
            *(self._start_when_reloaded(s) for s in self.slots if at_start is None or s.index in at_start)
        )

    def connect(self, sync: WeightSync) -> None:
        """Set the weight sync from which starting engines load the published weights."""
        self._sync = sync

    @property
    def ready_slots(self) -> list[FleetSlot]:
        """The slots whose engines take rollouts."""
        return [slot for slot in self.slots if slot.is_ready]

    @asynccontextmanager
    async def wait_for_ready(self) -> AsyncIterator[list[FleetSlot]]:
        """Context manager that waits until an engine is ready, then yields the ready slots.

        The code in the `async with` block must not await.

        Raises:
            TrainingHalted: An engine could not be started.
        """
        async with self._state_changed:
            await self._state_changed.wait_for(lambda: self._failure or self.ready_slots)
            if self._failure is not None:
                raise self._failure
            yield self.ready_slots

    async def notify(self) -> None:
        """Wake up tasks that wait for published weights or for the engines to be reloaded."""
        async with self._state_changed:
            self._state_changed.notify_all()

    async def wait_until_all_ready(self) -> None:
        """Wait until each slot has an engine that samples with the published weights."""
        async with self._state_changed:
            await self._state_changed.wait_for(lambda: self._failure or all(slot.is_ready for slot in self.slots))
        if self._failure is not None:
            raise self._failure

    async def offload(self, discards: bool) -> None:
        """Offload all engines to free their GPUs; only `GpuLease` calls this.

        Waits until no engine is starting or loading weights, and lets no other engine start before `reload`. An engine
        that cannot be offloaded is replaced, which frees its GPUs, too. With `discards`, engines discard weights
        that were published: the next `publish` replaces them, or `reload` loads them again.
        """
        async with self._state_changed:
            self.is_offloaded = True
            await self._state_changed.wait_for(lambda: not any(slot.is_loading for slot in self.slots))
        await self._call_each(partial(self._offload, discards=discards), "the engine could not be offloaded")

    async def reload(self) -> None:
        """Reload all engines; only `GpuLease` calls this.

        Unless new weights follow (`awaits_update`), engines that discarded their weights load the published weights.
        """
        await self._call_each(self._reload, "the engine could not be reloaded")
        async with self._state_changed:
            self.is_offloaded = False
            self._state_changed.notify_all()

    async def _offload(self, slot: FleetSlot, *, discards: bool) -> None:
        has_published = slot.is_ready and self._sync is not None and self._sync.last_published is not None
        offloading = slot.worker.offload.remote(discards and has_published)
        slot.lacks_weights = await call_actor(offloading, slot.name, EngineFailed, OFFLOAD_TIMEOUT_S)

    async def _reload(self, slot: FleetSlot) -> None:
        await call_actor(slot.worker.reload.remote(), slot.name, EngineFailed, OFFLOAD_TIMEOUT_S)
        lacks_weights, slot.lacks_weights = slot.lacks_weights, False
        published = None if self._sync is None else self._sync.last_published
        if self._sync is None or published is None or not lacks_weights or self.awaits_update:
            return
        with suppress(WeightsLost):  # requests wait until the restarted learner has published weights
            outcome = await self._sync.load_into(published, slot.worker, len(self.slots))
            if isinstance(outcome, EngineFailed):
                raise outcome

    async def _call_each(self, call: Callable[[FleetSlot], Awaitable[None]], why: str) -> None:
        async def call_one(slot: FleetSlot) -> None:
            worker = slot.worker
            try:
                await call(slot)
            except EngineFailed as error:
                await self.replace(slot, worker, f"{why}: {error.message}")

        await asyncio.gather(*(call_one(slot) for slot in self.slots if slot.worker is not None))

    async def shutdown(self) -> None:
        """Stop all engines; return when their processes have ended."""
        for task in self._restarts:
            task.cancel()
        await asyncio.gather(*(self._stop(slot.worker) for slot in self.slots if slot.worker is not None))
        self.slots.clear()

    async def _start_when_reloaded(self, slot: FleetSlot) -> None:
        """Wait until the fleet is not offloaded, then start the slot's engine."""
        async with self._state_changed:
            await self._state_changed.wait_for(lambda: not self.is_offloaded)
            slot.is_loading = True
        try:
            await self._start_engine(slot)
        finally:
            async with self._state_changed:
                slot.is_loading = False
                self._state_changed.notify_all()

    async def _start_engine(self, slot: FleetSlot) -> None:
        """Start a worker for a slot, and load the last published version into it."""
        slot.worker, slot.load = self._spawn(slot.index), EngineLoad()
        slot.channel = ChannelClient(slot.worker, slot.name, EngineFailed, self._rollout_s)
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await call_actor(slot.worker.start.remote(), slot.name, EngineFailed, self._start_timeout_s)
                await call_actor(slot.worker.init_transport.remote({}), slot.name, EngineFailed)
                await slot.channel.connect()
        except TimeoutError:
            raise EngineFailed(f"{slot.name} did not start within {self._start_timeout_s:g} s") from None
        await self._catch_up(slot)

    async def _catch_up(self, slot: FleetSlot) -> None:
        """Load the last published version, if any, into a slot's engine; then mark the slot as ready for rollouts."""
        while True:
            async with self.publish_lock:  # no weights are published during `collect`
                published = self._sync.last_published if self._sync is not None else None
            if self._sync is not None and published is not None:
                # The loss of the learner is detected soon, and its weights are published again.
                with suppress(WeightsLost):
                    outcome = await self._sync.load_into(published, slot.worker, len(self.slots))
                    if isinstance(outcome, EngineFailed):
                        raise outcome
            async with self._state_changed:
                if self._sync is not None and self._sync.is_lost:
                    await self._wait_for_republish(self._sync, slot)
                # Otherwise a newer version was published while this one loaded.
                elif self._sync is None or self._sync.last_published is published:
                    slot.is_ready = True
                    self._state_changed.notify_all()
                    return

    async def _wait_for_republish(self, sync: WeightSync, slot: FleetSlot) -> None:
        """Wait until lost weights have been published again. The engine may be offloaded during the wait."""
        slot.is_loading = False
        self._state_changed.notify_all()
        await self._state_changed.wait_for(lambda: not sync.is_lost and not self.is_offloaded)
        slot.is_loading = True

    async def replace(self, slot: FleetSlot, worker: Any, why: str) -> None:
        """Fence `worker`: kill its process, and start another worker in its slot in the background.

        Does nothing if the worker was already replaced, or if its slot is not ready.
        """
        if slot.worker is not worker or not slot.is_ready:
            return
        slot.is_ready = False
        self._emit(EngineReplaced(engine=slot.name, reason=why))
        self.budget.count(slot.name, why)
        self._on_lost(slot.name)
        self._kill(worker)
        self._start_in_background(self._restart_engine(slot, why))

    def _start_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def _restart_engine(self, slot: FleetSlot, why: str) -> None:
        try:
            while True:
                self.budget.check(slot.name, why)
                await self._wait_for_resources(slot)
                try:
                    await self._start_when_reloaded(slot)
                    break
                except EngineFailed as error:
                    if error.details.get("kind") not in (LOST, UNREACHABLE):
                        raise
                    why = error.message  # the engine's node may be failing before Ray notices
                    self._emit(EngineRestarted(engine=slot.name, reason=why))
                    self.budget.count(slot.name, why)
                    self._kill(slot.worker)
            self._emit(EngineJoined(engine=slot.name))
        except Exception as error:  # noqa: BLE001 - all callers that wait for an engine must receive the error
            what = f"{slot.name} could not be started"
            failure = (
                error if isinstance(error, TrainingHalted) else TrainingHalted(f"{what}: {error}", public_message=what)
            )
            if failure is not error:
                failure.__cause__ = error
            async with self._state_changed:
                self._failure = failure
                self._state_changed.notify_all()

    async def _wait_for_resources(self, slot: FleetSlot) -> None:
        """Wait for cluster resources. If no other engine is ready, raise EngineFailed after PLACEMENT_TIMEOUT_S."""
        placed = asyncio.ensure_future(self._resources_free(slot.index))
        try:
            while not (await asyncio.wait({placed}, timeout=PLACEMENT_TIMEOUT_S))[0]:
                if not any(other.is_ready for other in self.slots):
                    raise EngineFailed(
                        f"no cluster resources for this engine became free within {PLACEMENT_TIMEOUT_S:g} s"
                    )
            placed.result()
        finally:
            placed.cancel()

    async def _stop(self, worker: Any) -> None:
        try:
            async with asyncio.timeout(15):
                await worker.shutdown.remote()
        except (TimeoutError, ray.exceptions.RayError):
            pass  # killed below in any case
        self._kill(worker)
