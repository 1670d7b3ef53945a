"""The fleet of engines: runs rollouts, publishes weights to the engines, and compares the engines with the learner.

Each rollout returns exactly once, graded or discarded. An engine is fenced and replaced if it dies or hangs, or if its
log-probabilities differ from the learner's after a weight update. The new engine loads the published weights before it
takes rollouts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import ray
from numpy.typing import NDArray

from agent_rft.actors.endpoints.endpoint_statistics import to_endpoint_metrics
from agent_rft.actors.rollout.canary import Canary, ComputeLogprobs
from agent_rft.actors.rollout.engine_assignment import AssignEngine, group_key
from agent_rft.actors.rollout.engine_replacement import FleetSlot, FleetSlots
from agent_rft.actors.rollout.episode import RolloutRequest
from agent_rft.actors.rollout.live_counts import BusyShare, RolloutProgress
from agent_rft.actors.rollout.rollout_groups import GroupRunner
from agent_rft.actors.rollout.rollout_throttle import RolloutThrottle
from agent_rft.actors.rollout.rollout_worker import run_on_worker
from agent_rft.actors.runtime.actor_calls import READ_TIMEOUT_S, call_actor
from agent_rft.actors.runtime.gpu_lease import GpuLease
from agent_rft.actors.runtime.watchdog import WatchedActor, make_heartbeat
from agent_rft.actors.weights.shared_memory import remove_leftovers
from agent_rft.actors.weights.start_timeout import START_TIMEOUT_S
from agent_rft.actors.weights.weight_sync import WeightSync
from agent_rft.errors import DiscardError, EngineFailed
from agent_rft.events import WeightsNotCompared
from agent_rft.loop_protocols import Emit
from agent_rft.spec.job import RolloutLimits
from agent_rft.types import DiscardedRollout, Group, GroupRequest, Rollout, SyncReport

BUSY_TIMEOUT_S = 5.0
"""Time limit for an engine to report its busy seconds. The step continues without late reports."""
ROLLOUT_GRACE_S = 60.0
"""Seconds that a call to an engine may take beyond the time limits of the rollout."""


EndpointSource = Callable[[], Awaitable[dict[str, dict[str, Any]]]]


async def _do_not_wait(index: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class EngineState:
    """State of an engine, for display.

    `waiting` means that the cluster does not have resources for the engine yet. `offloaded` means that the engine has
    given the GPUs to the learner for now. `rollouts` is the number of rollouts in flight on the engine.
    """

    name: str
    state: Literal["waiting", "starting", "offloaded", "ready"]
    rollouts: int


class Fleet:
    """All engines of a run; implements `agent_rft.loop_protocols.RolloutService` with rollout workers.

    Args:
        spawn: Creates the actor of a fleet slot, given the slot's index, without starting the engine.
        size: Number of engines.
        assign: Chooses the engine of each rollout.
        canary_limit: Mean absolute difference between an engine's and the learner's log-probabilities, in nats, at
            which the engine is replaced. For a mixture of experts, `Canary` raises the limit.
        limits: Limits of each rollout.
        emit: Receives the events of engines and of throttled rollouts.
        on_lost: Called with the name of each engine that is lost. Its rollouts are lost, too.
        endpoints: Functions that return the statistics of endpoints, by endpoint name.
        wait_for_resources: Returns when the cluster has resources for a fleet slot, given the slot's index.
        kill: Kills the process of an actor.
        start_timeout_s: Time limit for starting an engine, not counting the wait for resources.
        is_mixture: Whether the model is a mixture of experts.
    """

    def __init__(
        self,
        spawn: Callable[[int], Any],
        size: int,
        assign: AssignEngine,
        canary_limit: float,
        limits: RolloutLimits,
        emit: Emit,
        on_lost: Callable[[str], None] = lambda name: None,
        endpoints: Sequence[EndpointSource] = (),
        wait_for_resources: Callable[[int], Awaitable[None]] = _do_not_wait,
        kill: Callable[[Any], None] = ray.kill,
        start_timeout_s: float = START_TIMEOUT_S,
        is_mixture: bool = False,
    ) -> None:
        self._assign = assign
        self._canary = Canary(canary_limit, is_mixture=is_mixture)
        self._sync: WeightSync | None = None
        self._gpu_lease: GpuLease | None = None
        self._emit = emit
        self._endpoints = endpoints
        rollout_s = limits.rollout_timeout_s + limits.wait_timeout_s + ROLLOUT_GRACE_S
        self._engines = FleetSlots(spawn, size, emit, on_lost, wait_for_resources, kill, start_timeout_s, rollout_s)
        self._groups = GroupRunner(self._run_on_engine, limits, RolloutThrottle(limits.max_failure_rate, emit), emit)
        self._busy_share = BusyShare()

    async def start(self, at_start: Container[int] | None = None) -> None:
        """Start the engines whose slot indexes are in `at_start`, or all engines if it is None.

        The remaining engines start later, when the cluster has resources for them.

        Raises:
            EngineFailed: An engine with a slot index in `at_start` did not start.
        """
        await self._engines.start(at_start)

    def connect(self, sync: WeightSync, learner_logprobs: ComputeLogprobs) -> None:
        """Set the source of new weights, and the function that computes the learner's log-probabilities.

        Only `publish` needs them.
        """
        self._sync = sync
        self._engines.connect(sync)
        self._canary.set_learner_logprobs(learner_logprobs)

    def set_gpu_lease(self, gpu_lease: GpuLease) -> None:
        """Set the lease with which the engines and the learner time-share the GPUs.

        From then on, `publish` offloads the engines while it collects the weights.
        """
        self._gpu_lease = gpu_lease

    async def offload(self, discards: bool = False) -> None:
        """Offload all engines to free their GPUs; only `GpuLease` calls this."""
        await self._engines.offload(discards)

    async def reload(self) -> None:
        """Reload all engines; only `GpuLease` calls this."""
        await self._engines.reload()

    async def sample(self, request: GroupRequest) -> Group:
        """Run a group of rollouts, and retry failed rollouts as often as `limits` allows."""
        return await self._groups.sample(request)

    async def get_counts(self) -> dict[str, float]:
        """Return the metrics of rollouts, endpoints and engines; skip processes that are restarting."""
        metrics = self._groups.attempt_counts.metrics() | to_endpoint_metrics(await self.endpoint_stats())
        share = self._busy_share.measure(await self._read_busy_s())
        return metrics if share is None else metrics | {"engine_busy_share": share}

    async def has_outage(self) -> bool:
        """Return whether rollouts are throttled, or the circuit breaker of an endpoint is not closed."""
        stats = await self.endpoint_stats()
        return self._groups.is_throttled or any(values["breaker"] != "closed" for values in stats.values())

    async def _read_busy_s(self) -> dict[Any, float]:
        """Return the busy seconds of engines by actor; skip shared engines, because other jobs use them, too."""
        slots = self._engines.ready_slots
        refs = [(slot.worker, slot.worker.engine_stats.remote(), slot.name) for slot in slots]

        async def read_engine(ref: Any, name: str) -> float | None:
            with suppress(EngineFailed):
                busy_s: float | None = (await call_actor(ref, name, EngineFailed, BUSY_TIMEOUT_S)).get("busy_s")
                return busy_s
            return None

        found = await asyncio.gather(*(read_engine(ref, name) for _, ref, name in refs))
        return {worker: busy_s for (worker, *_), busy_s in zip(refs, found, strict=True) if busy_s is not None}

    async def endpoint_stats(self) -> dict[str, dict[str, Any]]:
        """Return `EndpointClient.stats` of all tools and graders, by endpoint name.

        Processes that are restarting are skipped.
        """
        stats: dict[str, dict[str, Any]] = {}
        for source in self._endpoints:
            with suppress(DiscardError):
                stats |= await source()
        return stats

    def engine_states(self) -> list[EngineState]:
        """Return the state of each slot's engine."""
        return [EngineState(slot.name, self._engine_state(slot), slot.load.total) for slot in self._engines.slots]

    def _engine_state(self, slot: FleetSlot) -> Literal["waiting", "starting", "offloaded", "ready"]:
        if not slot.is_ready:
            return "waiting" if slot.worker is None else "starting"
        return "offloaded" if self._engines.is_offloaded else "ready"

    def live_metrics(self) -> dict[str, float]:
        """Return the current metrics of rollouts and engines, for a Recorder. Any thread may call this."""
        live = self._groups.attempt_counts.live_metrics() | {"engine_replacements": float(self._engines.budget.total)}
        for slot in self._engines.slots:
            live[f"engine/{slot.name}/ready"] = float(slot.is_ready)
            live[f"engine/{slot.name}/rollouts"] = float(slot.load.total)
        return live

    async def publish(self, version: int) -> SyncReport:
        """Load the learner's weights into all engines, then compare the engines with the learner.

        The comparison uses checksums and a canary. Engines that differ are replaced.
        """
        if self._sync is None:
            raise ValueError("call connect() before publish()")
        started = time.monotonic()
        if self._gpu_lease is not None:
            await self._gpu_lease.give_to_learner()
        async with self._engines.publish_lock:
            published = await self._sync.collect(version)
        expected = await self._canary.compute_learner_logprobs()
        if self._gpu_lease is not None:
            self._engines.awaits_update = True
            try:
                await self._gpu_lease.give_to_engines()
            finally:
                self._engines.awaits_update = False
        await self._engines.notify()  # for engines that wait because the previous version was lost
        slots, unloaded_before = self._engines.ready_slots, self._sync.unloaded_tensors
        outcomes = await self._sync.deliver(published, [slot.worker for slot in slots])
        if (unloaded := self._sync.unloaded_tensors) and not unloaded_before:
            self._emit(WeightsNotCompared(tensors=unloaded[:3], num_tensors=len(unloaded)))
        fenced = {s: o.message for s, o in zip(slots, outcomes, strict=True) if isinstance(o, EngineFailed)}
        gaps = await self._canary_gaps([slot for slot in slots if slot not in fenced], expected)
        accepted = self._canary.accept([gap for _, gap in gaps])
        differs = f"the engine's log-probabilities differ from the learner's in version {version}"
        fenced |= {
            slot: f"{differs} by {gap:.3g} nats (limit {self._canary.limit:.3g})"
            for (slot, gap), is_accepted in zip(gaps, accepted, strict=True)
            if not is_accepted
        }
        self._engines.budget.reset(version, [slot.name for slot in slots if slot not in fenced])
        for slot, why in fenced.items():
            await self._engines.replace(slot, slot.worker, why)
        pauses = [outcome for outcome in outcomes if not isinstance(outcome, EngineFailed)]
        return SyncReport(
            version=version,
            pause_s=max(pauses, default=0.0),
            total_s=time.monotonic() - started,
            num_bytes=published.num_bytes,
            fenced=tuple(slot.name for slot in fenced),
            canary_gap=max((gap for slot, gap in gaps if slot not in fenced), default=0.0),
        )

    async def wait_until_all_ready(self) -> None:
        """Wait until each slot has an engine that samples with the published weights."""
        await self._engines.wait_until_all_ready()

    async def engine_stats(self) -> list[dict[str, Any]]:
        slots = self._engines.ready_slots
        return [
            await call_actor(slot.worker.engine_stats.remote(), slot.name, EngineFailed, READ_TIMEOUT_S)
            for slot in slots
        ]

    def watch_targets(self) -> list[WatchedActor]:
        """Return the ready engines as targets of the watchdog, which replaces engines that hang."""
        replace = self._engines.replace
        return [
            WatchedActor(
                s.name, make_heartbeat(s.worker, s.name, EngineFailed), partial(replace, s, s.worker), s.worker
            )
            for s in self._engines.ready_slots
        ]

    @property
    def rollout_progress(self) -> RolloutProgress:
        """Live progress of the rollouts."""
        return self._groups.rollout_progress

    def count_rollouts(self) -> tuple[int, int]:
        """Return the number of rollout attempts that have ended since the job started, and the number in flight."""
        account = self._groups.attempt_counts
        return account.started - account.in_flight, account.in_flight

    async def shutdown(self) -> None:
        """Stop all engines; return when their processes have ended."""
        await self._engines.shutdown()
        remove_leftovers()

    # -- rollouts ------------------------------------------------------------------------------------------------------

    async def _run_on_engine(self, request: RolloutRequest) -> Rollout | DiscardedRollout:
        """Run one rollout on the engine that `assign` chooses; wait while no engine is ready."""
        group = group_key(request)
        async with self._engines.wait_for_ready() as ready:
            slot = ready[self._assign([slot.load for slot in ready], group)]
            worker, channel, load = slot.worker, slot.channel, slot.load
            load.add(group)
        try:
            outcome = await run_on_worker(channel, request)
        except EngineFailed as error:
            outcome = DiscardedRollout("", request.task.row_id, request.sample, error.reason, error.message)
        finally:
            load.remove(group)
        if isinstance(outcome, Rollout):
            self._canary.observe(outcome)
        elif outcome.reason == EngineFailed.reason:
            await self._engines.replace(slot, worker, outcome.message)
        return outcome

    async def _canary_gaps(
        self, slots: Sequence[FleetSlot], expected: NDArray[np.float32] | None
    ) -> list[tuple[FleetSlot, float]]:
        """Return each slot with its engine's gap, from `Canary.measure_gaps`; empty if `expected` is None.

        Experts are not replayed on shared GPUs, because the learner would have to offload the engines once more.
        """
        if expected is None:
            return []
        engines = [(slot.worker, slot.name) for slot in slots]
        gaps = await self._canary.measure_gaps(engines, expected, can_replay=self._gpu_lease is None)
        return list(zip(slots, gaps, strict=True))
