"""Start, supervision and shutdown of the actors of one run: engines, learner ranks, dispatchers and grader pool.

The module also assigns tool sessions to engines, and ends all sessions at the end of the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import ray

from agent_rft.actors.endpoints.signing import create_signer
from agent_rft.actors.grading.grader_factory import GRACE_S, grade_deadline_s, iterate_graders
from agent_rft.actors.grading.grader_pool import GraderPoolActor, GraderPoolClient, watch_grader_pool
from agent_rft.actors.learner.learner_group import LearnerGroup
from agent_rft.actors.rollout.canary import CANARY_LIMITS
from agent_rft.actors.rollout.engine_assignment import GroupAffinity
from agent_rft.actors.rollout.fleet import Fleet
from agent_rft.actors.rollout.rollout_worker import RolloutWorker
from agent_rft.actors.runtime.actor_calls import flush_actor_traces
from agent_rft.actors.runtime.gpu_lease import GpuLease
from agent_rft.actors.runtime.watchdog import Watchdog, WatchedActor
from agent_rft.actors.tools.dispatcher_actor import DispatcherClient, start_dispatchers, watch_dispatchers
from agent_rft.actors.tools.tool_sessions import CLOSE_S
from agent_rft.actors.weights.start_timeout import start_timeout_s
from agent_rft.cluster.checks.check_job import CheckedJob
from agent_rft.cluster.planning.placement import num_dispatchers
from agent_rft.cluster.ray_cluster.live_nodes import LiveNodeReader
from agent_rft.cluster.ray_cluster.reservation_lock import reservation_lock
from agent_rft.cluster.ray_cluster.reservations import Reservations
from agent_rft.cluster.ray_cluster.shared_reservations import SharedReservations
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.run.actor_configs import create_weight_sync, learner_config, shared_engine_configs, worker_config
from agent_rft.cluster.run.live_status import LiveStatusFile
from agent_rft.cluster.run.reservation import reserve
from agent_rft.cluster.run.sinks.metrics_sink import MetricsSink
from agent_rft.errors import ActorStartFailed, DiscardError, EngineFailed, ToolFailed, first_error
from agent_rft.events import ComponentFailed, PhaseStarted, SessionProblem
from agent_rft.loop_protocols import Emit
from agent_rft.spec.job import Reinforcement
from agent_rft.spec.operator.operator_config import OperatorConfig


class RunActors:
    """Actors of a run, with methods to start and stop them. Call `shutdown` at the end, even if `start` failed.

    `on_change` is called with the job if `start` changes the job's layout.
    """

    def __init__(
        self,
        prepared: CheckedJob,
        operator: OperatorConfig,
        run: RunFolder,
        metrics: MetricsSink,
        emit: Emit,
        on_change: Callable[[CheckedJob], None],
    ) -> None:
        self._prepared = prepared
        self._on_change = on_change
        self._operator = operator
        self._folder = run.owner_folder
        self._name = run.path.name
        self._metrics = metrics
        self._emit = emit
        self._shared_engines = SharedReservations(shared_engine_configs(prepared))
        self._reservations: Reservations | None = None
        self._fleet: Fleet | None = None
        self._counts: dict[str, float] = {}
        self._sessions: JobSessions | None = None
        self._learner: LearnerGroup | None = None
        self._helpers: list[WatchedActor] = []
        self._traced: list[Any] = []
        self._watchdog: asyncio.Task[None] | None = None
        self._now: LiveStatusFile | None = None
        metrics.recorder.add_source(self._read_live_counts)

    @property
    def fleet(self) -> Fleet:
        """Engines of the run. Available after `start`, if the placement has engines."""
        assert self._fleet is not None
        return self._fleet

    @property
    def learner(self) -> LearnerGroup:
        """Learner ranks of the run. Available after `start`, if the placement has a learner."""
        assert self._learner is not None
        return self._learner

    async def start(self) -> None:
        """Wait for resources, then start engines and learner concurrently; colocated engines start after the learner.

        Raises:
            RftError: The resources are missing, or an actor could not start.
        """
        wait_for_nodes_s = self._operator.wait_for_nodes_s
        self._emit(PhaseStarted(phase="resources"))
        shared_engines = await self._shared_engines.wait(self._report_missing, wait_for_nodes_s=wait_for_nodes_s)
        self._reservations, placed = await reserve(
            self._prepared,
            lambda placement: Reservations(placement, self._name),
            LiveNodeReader(),
            self._operator,
            self._report_missing,
            self._change_layout,
            reservation_lock,
        )
        reservations, at_start = self._reservations, shared_engines + placed
        prepared, metrics, placement = self._prepared, self._metrics.address, self._prepared.placement
        engines, learner = placement.engines > 0, placement.learner_ranks > 0
        starting = " and ".join(["engines"] * engines + ["learner"] * learner)
        self._emit(PhaseStarted(phase="actors", detail=starting))
        fleet, learning = None, None
        try:
            async with asyncio.TaskGroup() as group:
                if learner:
                    options = [reservations.rank_options(i) for i in range(placement.learner_ranks)]
                    learning = group.create_task(LearnerGroup.start(learner_config(prepared), options, metrics))
                if engines:
                    self._fleet = fleet = self._make_fleet(reservations)
                    group.create_task(self._start_engines(fleet, at_start, learning if placement.colocated else None))
                    group.create_task(self._wait_for_helpers())
        except ExceptionGroup as errors:
            raise first_error(errors) from errors
        if learning is not None:
            self._learner = learning.result()
            if fleet is not None:
                fleet.connect(create_weight_sync(prepared, self._learner), self._learner.logprobs)
        progress = None if fleet is None else fleet.count_rollouts
        deadlines = None if fleet is None else stage_deadlines_s(prepared.job.reinforcement, self._operator)
        watchdog = Watchdog(self._list_watched, progress, self._emit, stage_deadlines_s=deadlines)
        self._watchdog = asyncio.create_task(watchdog.run())
        self._watchdog.add_done_callback(self._on_watchdog_end)
        self._now = LiveStatusFile(self._folder, watchdog, fleet, self._emit)

    async def _start_engines(
        self, fleet: Fleet, at_start: Container[int], colocated: asyncio.Task[LearnerGroup] | None
    ) -> None:
        """Start the engines. Colocated engines wait for the learner, then measure the GPU memory that is left."""
        learner = None if colocated is None else await colocated
        if learner is not None and self._prepared.placement.takes_turns:
            lease = GpuLease(fleet, learner)
            learner.set_gpu_lease(lease)
            fleet.set_gpu_lease(lease)
            await learner.release_devices()
        await fleet.start(at_start)

    async def restart(self, prepared: CheckedJob) -> None:
        """Replace all actors with new actors for `prepared`, which has another placement or model.

        Raises:
            RftError: See `start`.
        """
        await self.shutdown()
        self._name += ":again"  # the names of the actors that just ended may still be taken
        self._prepared = prepared
        self._shared_engines = SharedReservations(shared_engine_configs(prepared))
        await self.start()

    async def shutdown(self) -> None:
        """Stop all actors and release their resources."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._now is not None:
            await self._now.close()
        if self._fleet is not None:
            await self._fleet.shutdown()
            self._counts = self._fleet.live_metrics()  # Prometheus reads them once more at the end of the job
        if self._sessions is not None:
            await self._sessions.close()
        if self._operator.traces is not None:
            await flush_actor_traces(self._traced)
        if self._learner is not None:
            await self._learner.shutdown()
        if self._reservations is not None:
            self._reservations.release()
        self._traced = []
        self._watchdog = self._now = self._fleet = self._sessions = self._learner = self._reservations = None

    def _read_live_counts(self) -> dict[str, float]:
        return self._counts if self._fleet is None else self._fleet.live_metrics()

    def _change_layout(self, prepared: CheckedJob) -> None:
        self._prepared = prepared
        self._on_change(prepared)

    def _report_missing(self, resources: str) -> None:
        self._emit(PhaseStarted(phase="resources", detail=resources))

    async def _wait_for_helpers(self) -> None:
        """Wait until the dispatchers and the grader pool answer.

        Raises:
            ActorStartFailed: A dispatcher or the grader pool can never start.
        """
        for helper in self._helpers:
            with suppress(DiscardError):  # the actor is being restarted
                await helper.heartbeat()

    def _on_watchdog_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:  # a bug in the watchdog; the job continues
            self._emit(ComponentFailed(component="watchdog", error=f"{type(error).__name__}: {error}"))

    def _list_watched(self) -> list[WatchedActor]:
        """Return all current actors of this run for the watchdog."""
        engines = [] if self._fleet is None else self._fleet.watch_targets()
        return engines + self._helpers + ([] if self._learner is None else self._learner.watch_targets())

    def _make_fleet(self, reservations: Reservations) -> Fleet:
        prepared, metrics = self._prepared, self._metrics.address
        reinforcement = prepared.job.reinforcement
        folder = self._folder
        tools, session = reinforcement.tools, reinforcement.session
        count = num_dispatchers(tools, prepared.placement)
        signer = create_signer(reinforcement)
        dispatchers = start_dispatchers(
            tools, self._operator, count, session, folder, reservations.helper_options, metrics, signer
        )
        if session is not None:
            self._sessions = JobSessions(DispatcherClient(*dispatchers), folder, self._emit)
        graders = (
            cast(Any, GraderPoolActor)
            .options(**reservations.helper_options("grader-pool"))
            .remote(reinforcement, self._operator, metrics)
        )
        self._helpers = [*watch_dispatchers(dispatchers), watch_grader_pool(graders)]
        self._traced = [*dispatchers, graders]
        traces = self._operator.traces
        config = worker_config(prepared, dispatchers, graders, metrics, traces)
        shared = self._shared_engines
        worker_class = ray.remote(RolloutWorker)

        def spawn(index: int) -> Any:
            name = f"engine-{index}"
            owner = None if self._sessions is None else self._sessions.new_owner(name)
            options = worker_class.options(max_concurrency=10_000, **reservations.engine_options(index))
            return options.remote(replace(config, owner=owner, name=name, shared=shared.get(index)))

        def end_sessions(name: str) -> None:
            if self._sessions is not None:
                self._sessions.end_lost_sessions(name)

        canary_limit = CANARY_LIMITS[prepared.placement.dtype]
        endpoints = [DispatcherClient(*dispatchers).endpoint_stats, GraderPoolClient(graders).endpoint_stats]
        placed = shared.wait_for_engine if prepared.placement.has_shared_engines else reservations.wait_for_engine
        return Fleet(
            spawn,
            prepared.placement.engines,
            GroupAffinity(prepared.placement.max_num_seqs),
            canary_limit,
            reinforcement.limits,
            self._emit,
            end_sessions,
            endpoints,
            placed,
            start_timeout_s=start_timeout_s(Path(prepared.job.model)),
            is_mixture=prepared.is_mixture,
        )


def stage_deadlines_s(reinforcement: Reinforcement, operator: OperatorConfig) -> dict[str, float]:
    """Return, for each stage of a rollout, the seconds after which a call of this stage counts as stuck.

    Sampling has no deadline. The tool calls of one turn run concurrently, and the graders of one rollout run
    concurrently. Therefore the largest timeout determines the deadline.
    """
    session = reinforcement.session
    return {
        "session start": 0.0 if session is None else session.timeout_s + GRACE_S,
        "tool calls": max((tool.timeout_s + GRACE_S for tool in reinforcement.tools), default=0.0),
        "grading": max(grade_deadline_s(grader, operator) for _, grader in iterate_graders(reinforcement)),
    }


# -- sessions ----------------------------------------------------------------------------------------------------------


POLL_PROBLEMS_S = 10.0
CLOSE_GRACE_S = 10.0
"""Seconds added to the deadline `CLOSE_S`, so that the dispatcher can still report how many sessions are open."""


class JobSessions:
    """Tool sessions of one run. Create the object in the run's event loop.

    `journals` is the folder with the dispatchers' session journals.
    """

    def __init__(self, dispatcher: DispatcherClient, journals: Path, emit: Emit) -> None:
        self._dispatcher = dispatcher
        self._hint = f"the files sessions-*.jsonl in {journals} list these sessions; resume the run to end them"
        self._emit = emit
        self._owners: dict[str, str] = {}
        self._incarnations = count(1)
        self._watch = asyncio.create_task(self._poll_problems())

    def new_owner(self, engine: str) -> str:
        """Return a new owner name for the sessions of an engine that is about to start."""
        self._owners[engine] = f"{engine}/{next(self._incarnations)}"
        return self._owners[engine]

    def end_lost_sessions(self, engine: str) -> None:
        """End the sessions of all rollouts that ran on a lost engine."""
        self._dispatcher.end_owner_sessions(self._owners[engine], EngineFailed.reason)

    async def close(self) -> None:
        """End all open sessions. Call this when no rollouts are running."""
        self._watch.cancel()
        try:
            async with asyncio.timeout(CLOSE_S + CLOSE_GRACE_S):
                left = await self._dispatcher.close_sessions("job_stopped")
                await self._report_problems()
        except (TimeoutError, ToolFailed, ActorStartFailed) as error:
            self._emit(SessionProblem(detail=f"sessions may still be open ({error}); {self._hint}"))
            return
        if left:
            self._emit(SessionProblem(detail=f"{left} sessions could not be ended; {self._hint}"))

    async def _poll_problems(self) -> None:
        while True:
            await asyncio.sleep(POLL_PROBLEMS_S)
            try:
                await self._report_problems()
            except (ToolFailed, ActorStartFailed):
                continue  # the dispatcher is restarting, or the job is ending

    async def _report_problems(self) -> None:
        for text in await self._dispatcher.take_session_messages():
            self._emit(SessionProblem(detail=text))
