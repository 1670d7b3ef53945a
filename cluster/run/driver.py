"""The driver of one run, the only module that knows all parts: prepares, starts actors, trains or grades, cleans up."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import ray
from rich.console import Console
from rich.markup import escape

from actors.grading.pool import GraderPoolActor, GraderPoolClient, watched_graders
from actors.learner.group import LearnerGroup
from actors.rollout.fleet import CANARY_LIMITS, Fleet
from actors.rollout.worker import RolloutWorker
from actors.runtime.watchdog import Watchdog, Watched
from actors.tools.actor import DispatcherClient, start_dispatchers, watched_dispatchers
from cluster.preflight.prepare import Prepared, prepare
from cluster.ray_cluster.job_status import RayJobStatus, folder_warning, stop_warning
from cluster.ray_cluster.seats import Seats
from cluster.ray_cluster.session import is_local, ray_session
from cluster.records.redact import public_job
from cluster.records.run_folder import RunFolder, new_run_folder
from cluster.run.actor_configs import checking, job_digest, learner_config, print_plan, weight_sync, worker_config
from cluster.run.metrics_sink import MetricsSink
from cluster.run.plugins import RunInfo, load_plugins
from cluster.run.sessions import JobSessions
from cluster.run.signals import Signals
from cluster.run.stream import EventStream
from cluster.run.watch import Watch
from cluster.views.live import LiveView, before_after_table
from cluster.views.report import write_report
from trainer.errors import Discard, InvalidJob, Problem, RftError, first_error
from trainer.events import (
    ComponentFailed,
    Evaluated,
    JobEnded,
    JobStarted,
    Notice,
    Outcome,
    Phase,
    PhaseBegan,
    StepDone,
)
from trainer.loop.checkpoint import Checkpoints, LoopState, check_same_job
from trainer.loop.evaluate import evaluate
from trainer.loop.reinforcement import Loop, LoopConfig
from trainer.loop.supervised import SupervisedLoop
from trainer.protocols import Sink
from trainer.spec.job import JobSpec
from trainer.spec.operator import Operator
from trainer.types import Evaluation, Purpose, Task

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


async def check(job: JobSpec, runs: Path, address: str | None, operator: Operator) -> None:
    """Check a job and print its plan.

    Raises:
        InvalidJob: With all problems.
    """
    console = Console()
    with checking(), ray_session(address) as nodes:
        prepared = await prepare(job, nodes, runs, operator)
    print_plan(console, prepared)
    console.print("[green]the job is ready to train[/]")


async def train(job: JobSpec, runs: Path, resume: Path | None, address: str | None, operator: Operator) -> Outcome:
    """Train a job until it is done or a signal arrives.

    Raises:
        RftError: The run failed.
    """
    async with _run(job, runs, address, resume, operator) as run:
        await run.train(resume is not None)
    return run.outcome


async def train_in(
    job: JobSpec, folder: Path, address: str | None, operator: Operator, watch: Watch | None = None
) -> Outcome:
    """Train a job in its own folder, resuming from the last checkpoint if there is one.

    So a lost job can be restarted with the same call. A job with a `watch` is a server's: its endpoints were tried when
    it was created, so they are not tried here, and one that fails now is retried.

    Raises:
        RftError: The run failed.
    """
    resuming = (folder / "checkpoints").is_dir() and Checkpoints(folder / "checkpoints").latest() is not None
    async with _run(job, folder.parent, address, folder, operator, watch) as run:
        await run.train(resuming)
    return run.outcome


async def evaluate_model(
    job: JobSpec, file: str, samples: int, runs: Path, address: str | None, operator: Operator
) -> Outcome:
    """Grade a model on one of the job's files and save every rollout.

    Raises:
        RftError: The run failed.
    """
    if job.method.type == "supervised":
        raise InvalidJob("eval needs a job with a grader: use one whose method is reinforcement")
    if file not in ("training_file", "validation_file", "test_file") or getattr(job, file) is None:
        remedy = "use training_file, validation_file or test_file, and set it in the job"
        raise InvalidJob("nothing to grade", [Problem("missing_file", "--file", f"the job has no {file!r}", remedy)])
    async with _run(job, runs, address, None, operator, learner=False) as run:
        await run.evaluation(file, samples)
    return run.outcome


# -- a run -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _run(
    job: JobSpec,
    runs: Path,
    address: str | None,
    resume: Path | None,
    operator: Operator,
    watch: Watch | None = None,
    learner: bool = True,
) -> AsyncIterator[_Run]:
    """Connect, check the job and create the run folder; on exit close everything and write the report."""
    console = Console()
    with ray_session(address) as nodes, Signals() as signals:
        with checking():
            prepared = await prepare(job, nodes, runs, operator, dry_run=watch is None, learner=learner)
        print_plan(console, prepared)
        if watch is not None:
            watch.prepared(prepared)
        folder = RunFolder(resume or new_run_folder(runs, job.suffix))
        view = LiveView(prepared.plan.steps, console)
        metrics = MetricsSink.of_run(folder.path, local=is_local(address))
        run = _Run(prepared, operator, folder, view, metrics, signals, console, watch)
        try:
            with view:
                yield run
        except asyncio.CancelledError:
            if not signals.count:
                raise
            run.outcome = "stopped"
        except OSError as error:
            run.failed(error)
            if error.errno not in DISK_ERRORS:
                raise
            raise RftError(f"cannot write to {folder.path}: {error.strerror}") from error
        except Exception as error:
            run.failed(error)
            raise
        finally:
            await asyncio.shield(run.close())


class _Run:
    """One run: the actors that it starts, and its steps."""

    def __init__(
        self,
        prepared: Prepared,
        operator: Operator,
        folder: RunFolder,
        view: LiveView,
        metrics: MetricsSink,
        signals: Signals,
        console: Console,
        watch: Watch | None,
    ) -> None:
        self.outcome: Outcome = "done"
        self._error = ""
        self._prepared = prepared
        self._operator = operator
        self._folder = folder
        self._view = view
        self._metrics = metrics
        self._status = RayJobStatus(folder.path.name)
        sinks: list[Sink] = [folder, view, metrics, self._status, *([] if watch is None else [watch])]
        plugins = load_plugins(RunInfo(folder.path.name, folder.path, public_job(prepared.job)))
        self._stream = EventStream(folder.path.name, sinks, [folder, metrics], plugins)
        self._signals = signals
        self._console = console
        self._seats: Seats | None = None
        self._fleet: Fleet | None = None
        self._sessions: JobSessions | None = None
        self._learner: LearnerGroup | None = None
        self._helpers: list[Watched] = []
        self._watchdog: asyncio.Task[None] | None = None
        folder.write_job(prepared.job, prepared.plan, {"context_length": prepared.context_length})
        self._stream.emit(JobStarted(method=prepared.job.method.type, total_steps=prepared.plan.steps), skip=view)
        for warning in prepared.warnings:
            self._stream.emit(Notice(text=warning), skip=view)  # printed with the plan
        for unsafe in () if watch is not None else (stop_warning(), folder_warning(folder.path)):
            if unsafe is not None:
                self._stream.emit(Notice(text=unsafe))

    def failed(self, error: Exception) -> None:
        """Record the error that ends the run."""
        self.outcome = "failed"
        self._error = str(error) if isinstance(error, RftError) else f"{type(error).__name__}: {error}"

    async def train(self, resuming: bool) -> None:
        if self._prepared.job.method.type == "supervised":
            await self.supervised(resuming)
        else:
            await self.reinforcement(resuming)

    async def reinforcement(self, resuming: bool) -> None:
        prepared, job = self._prepared, self._prepared.job
        checkpoints, latest, digest = self._checkpoints(resuming)
        fleet, learner = await self._start()
        assert learner is not None
        before = None
        if prepared.test and latest is None:
            before = await self._grade(fleet, prepared.test, "test", "test-before", prepared.plan.eval_samples)
        config = LoopConfig(
            prepared.plan, job.reinforcement.algorithm, job.seed, job.reinforcement.grader.pass_threshold, digest
        )
        loop = Loop(config, prepared.tasks, prepared.validation, fleet, learner, checkpoints, self._stream)
        await self._run_loop(loop, latest)
        if prepared.test and self.outcome == "done":
            after = await self._grade(fleet, prepared.test, "test", "test-after", prepared.plan.eval_samples)
            if before is not None:
                self._view.stop()
                self._console.print(before_after_table(before, after))

    async def supervised(self, resuming: bool) -> None:
        prepared, job = self._prepared, self._prepared.job
        checkpoints, latest, digest = self._checkpoints(resuming)
        _, learner = await self._start()
        assert learner is not None
        loop = SupervisedLoop(
            prepared.plan,
            job.supervised.algorithm,
            job.seed,
            prepared.tasks,
            prepared.validation,
            prepared.renderer,
            learner,
            checkpoints,
            self._stream,
            digest,
        )
        await self._run_loop(loop, latest)

    async def _run_loop(self, loop: Loop | SupervisedLoop, latest: tuple[Path, LoopState] | None) -> None:
        """Run a loop until it is done or a signal arrives, from the checkpoint `latest` if it is given."""
        if latest is not None:
            await loop.resume(*latest)
            state = latest[1]
            if self._folder.lacks(state.metrics):
                total_steps = self._prepared.plan.steps
                self._stream.emit(StepDone(step=state.step, total_steps=total_steps, metrics=state.metrics))
        self._phase("training")
        with self._signals.graceful(loop.stop):
            await loop.run()
        if self._signals.count:
            self.outcome = "stopped"

    async def evaluation(self, file: str, samples: int) -> None:
        prepared = self._prepared
        tasks = {"training_file": prepared.tasks, "validation_file": prepared.validation, "test_file": prepared.test}
        fleet, _ = await self._start()
        evaluation = await self._grade(fleet, tasks[file], "test", f"eval-{file.removesuffix('_file')}", samples)
        self._view.stop()
        self._console.print(before_after_table(evaluation, None))

    async def close(self) -> None:
        """Stop the actors, release resources, flush the sinks and write the report."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._fleet is not None:
            await self._fleet.shutdown()
        if self._sessions is not None:
            await self._sessions.close()
        if self._learner is not None:
            await self._learner.shutdown()
        if self._seats is not None:
            self._seats.release()
        self._stream.emit(JobEnded(outcome=self.outcome, error=self._error))
        await asyncio.to_thread(self._stream.close)
        await self._status.ended()
        self._view.stop()
        self._metrics.close()
        self._folder.close()
        self._console.print(f"run folder: {self._folder.path}", soft_wrap=True, highlight=False)
        problems = list(self._folder.problems)
        try:
            self._console.print(f"report:     {write_report(self._folder)}", soft_wrap=True, highlight=False)
        except OSError as error:
            problems.append(f"cannot write the report: {error.strerror}")
        for problem in problems:
            self._console.print(f"[yellow]warning[/] {escape(problem)}", soft_wrap=True, highlight=False)
        if self.outcome != "done" and self._folder.checkpoints.is_dir():
            latest = Checkpoints(self._folder.checkpoints).latest()
            if latest is not None:
                how = f"from {latest[0].name} with --resume {self._folder.path}"
                self._console.print(f"to resume:  {how}", soft_wrap=True, highlight=False)

    def _phase(self, phase: Phase, detail: str = "") -> None:
        self._stream.emit(PhaseBegan(phase=phase, detail=detail))

    def _checkpoints(self, resuming: bool) -> tuple[Checkpoints, tuple[Path, LoopState] | None, str]:
        """The run's checkpoints, the one to resume from, and the digest of the job.

        Raises:
            InvalidJob: There is no checkpoint to resume from, or the job has changed since.
        """
        checkpoints, digest = Checkpoints(self._folder.checkpoints), job_digest(self._prepared.job)
        latest = checkpoints.latest() if resuming else None
        if resuming and latest is None:
            raise InvalidJob(f"{self._folder.path} has no checkpoint to resume from")
        if latest is not None:
            check_same_job(latest[1], digest)
        return checkpoints, latest, digest

    # -- actors --------------------------------------------------------------------------------------------------------

    async def _start(self) -> tuple[Any, LearnerGroup | None]:
        """Start the placement's engines and learner concurrently; each takes tens of seconds."""
        prepared, metrics, placement = self._prepared, self._metrics.address, self._prepared.placement
        engines, learner = placement.engines > 0, placement.learner_ranks > 0
        self._seats = seats = Seats(placement, self._folder.path.name)
        self._phase("resources")
        missing = partial(self._phase, "resources")
        at_start = await seats.ready(missing, wait_for_nodes_s=self._operator.wait_for_nodes_s)
        self._phase("actors", " and ".join(["engines"] * engines + ["learner"] * learner))
        fleet, learning = None, None
        try:
            async with asyncio.TaskGroup() as group:
                if learner:
                    options = [seats.rank(i) for i in range(placement.learner_ranks)]
                    learning = group.create_task(LearnerGroup.start(learner_config(prepared, metrics), options))
                if engines:
                    self._fleet = fleet = self._make_fleet(seats)
                    self._metrics.recorder.add(fleet.live)
                    group.create_task(fleet.start(at_start))
                    group.create_task(self._helpers_answer())
        except ExceptionGroup as errors:
            raise first_error(errors) from errors
        if learning is not None:
            self._learner = learning.result()
            if fleet is not None:
                fleet.connect(weight_sync(prepared, self._learner), self._learner.logprobs)
        progress = None if fleet is None else fleet.progress
        self._watchdog = asyncio.create_task(Watchdog(self._watched, progress, self._stream.emit).run())
        self._watchdog.add_done_callback(self._watchdog_ended)
        return self._fleet, self._learner

    async def _helpers_answer(self) -> None:
        """Wait until dispatchers and graders answer, so that a job fails early.

        Raises:
            CannotStart: One of them can never start.
        """
        for helper in self._helpers:
            with suppress(Discard):  # it is being restarted
                await helper.pulse()

    def _watchdog_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:  # a bug: the job continues without it
            self._stream.emit(ComponentFailed(component="watchdog", error=f"{type(error).__name__}: {error}"))

    def _watched(self) -> list[Watched]:
        """The current actors of this job."""
        engines = [] if self._fleet is None else self._fleet.watched()
        return engines + self._helpers + ([] if self._learner is None else self._learner.watched())

    def _make_fleet(self, seats: Seats) -> Fleet:
        prepared, metrics = self._prepared, self._metrics.address
        reinforcement = prepared.job.reinforcement
        folder = self._folder.path
        tools, shards, session = reinforcement.tools, prepared.job.cluster.dispatchers, reinforcement.session
        dispatchers = start_dispatchers(tools, self._operator, shards, session, folder, seats.beside, metrics)
        if session is not None:
            self._sessions = JobSessions(DispatcherClient(*dispatchers), folder, self._stream.emit)
        graders = (
            cast(Any, GraderPoolActor)
            .options(**seats.beside("grader-pool"))
            .remote(reinforcement, self._operator, metrics)
        )
        self._helpers = [*watched_dispatchers(dispatchers), watched_graders(graders)]
        config = worker_config(prepared, dispatchers, graders, metrics)
        worker_class = ray.remote(RolloutWorker)

        def spawn(index: int) -> Any:
            name = f"engine-{index}"
            owner = None if self._sessions is None else self._sessions.new_owner(name)
            options = worker_class.options(max_concurrency=10_000, **seats.engine(index))
            return options.remote(replace(config, owner=owner, name=name))

        def lost(name: str) -> None:
            if self._sessions is not None:
                self._sessions.lost(name)

        size, canary_limit = prepared.job.cluster.engines, CANARY_LIMITS[prepared.placement.dtype]
        endpoints = [DispatcherClient(*dispatchers).endpoint_stats, GraderPoolClient(graders).endpoint_stats]
        emit, placed = self._stream.emit, seats.engine_placed
        return Fleet(spawn, size, canary_limit, reinforcement.limits, emit, lost, endpoints, placed)

    async def _grade(
        self, fleet: Fleet, tasks: Sequence[Task], purpose: Purpose, name: str, samples: int
    ) -> Evaluation:
        self._phase("grading", f"{len(tasks)} rows ({name})")
        reinforcement = self._prepared.job.reinforcement
        evaluation, groups = await evaluate(
            fleet, tasks, purpose, samples, reinforcement.algorithm.temperature, reinforcement.grader.pass_threshold
        )
        self._stream.groups(name, groups)
        self._stream.emit(Evaluated(name=name, evaluation=evaluation))
        return evaluation
