"""The driver of one run, where all parts come together: prepares, starts actors, trains or grades, cleans up."""

from __future__ import annotations

import asyncio
import errno
import shlex
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from agent_rft.actors.rollout.fleet import Fleet
from agent_rft.actors.runtime.exporter import MetricsAddress
from agent_rft.actors.runtime.tracing import tracer_of
from agent_rft.chat.conversation import samples_of
from agent_rft.cluster.planning.layout import layout_text
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.cluster.preflight.prepare import Prepared, prepare
from agent_rft.cluster.preflight.resumed import Began
from agent_rft.cluster.preflight.static import check_gradable
from agent_rft.cluster.ray_cluster.job_status import RayJobStatus, folder_warning, stop_warning
from agent_rft.cluster.ray_cluster.session import is_local, ray_session
from agent_rft.cluster.readiness.findings import Readiness
from agent_rft.cluster.records.checkpoint_store import CheckpointStore
from agent_rft.cluster.records.redact import public_job
from agent_rft.cluster.records.run_folder import NAMES, RunFolder, new_run_folder, open_run
from agent_rft.cluster.run.actor_configs import checking, print_plan
from agent_rft.cluster.run.actors import RunActors
from agent_rft.cluster.run.copies import Copies, open_store, restore
from agent_rft.cluster.run.integrations import load_integrations
from agent_rft.cluster.run.metrics_sink import MetricsSink
from agent_rft.cluster.run.plugins import RunInfo, load_plugins
from agent_rft.cluster.run.progress import ProgressReports
from agent_rft.cluster.run.readiness import Look, look_at
from agent_rft.cluster.run.report_writer import ReportWriter
from agent_rft.cluster.run.signals import Signals
from agent_rft.cluster.run.step_traces import StepTraces
from agent_rft.cluster.run.stream import EventStream, Watch
from agent_rft.cluster.views.busy_sides import compare_sides
from agent_rft.cluster.views.comparison.cheaper import fewer_calls
from agent_rft.cluster.views.ending import next_steps
from agent_rft.cluster.views.live import LiveView, before_after_table
from agent_rft.cluster.views.readiness.page import page_of, write_page
from agent_rft.cluster.views.report.page import write_report
from agent_rft.errors import InvalidJob, RftError
from agent_rft.events import (
    Evaluated,
    JobEnded,
    JobStarted,
    Notice,
    Outcome,
    PhaseBegan,
    ReadinessJudged,
    SettingChanged,
)
from agent_rft.protocols import Sink
from agent_rft.rows.ownership import Claim, FolderLost, FolderOwned, Tell, claim, silence_s
from agent_rft.spec.job import JobSpec
from agent_rft.spec.operator.config import Operator
from agent_rft.trainer.loop.checkpoint import Checkpoints, best_checkpoint, latest_checkpoint
from agent_rft.trainer.loop.evaluate import evaluate
from agent_rft.trainer.loop.journal import Journal
from agent_rft.trainer.loop.reinforcement import Loop, LoopConfig
from agent_rft.trainer.loop.supervised import SupervisedLoop
from agent_rft.types import Evaluation, Group, Task

OWNED_REMEDY = "; to wait for its end, give --wait-for-run 10m, or train in another folder"
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


async def check(job: JobSpec, model: ModelFolder, runs: Path, address: str | None, operator: Operator) -> None:
    """Check a job and print its plan.

    Raises:
        InvalidJob: With all problems.
    """
    console = Console()
    open_store(operator)
    with checking(), ray_session(address) as nodes:
        prepared = await prepare(job, model, nodes, runs, operator)
    print_plan(console, prepared)
    console.print("[green]the job is ready to train[/]")


def claim_run(path: Path, wait_s: float, tell: Tell, pause: Callable[[float], None] = time.sleep) -> Claim:
    """Become the owner of a run's folder; waits for the end of another owner for `wait_s` at most.

    Raises:
        MadeBefore: A version before 0.2.0 wrote the folder.
        FolderOwned: Another process owns it.
    """
    open_run(path)  # an older folder stays as it is
    return claim(path, NAMES, wait_s=wait_s, remedy=OWNED_REMEDY, tell=tell, silence_s=silence_s(), pause=pause)


async def claim_run_soon(path: Path, wait_s: float, tell: Tell) -> Claim:
    """As `claim_run`, without blocking the event loop; it may be cancelled."""
    cancelled = threading.Event()

    def pause(seconds: float) -> None:
        if cancelled.wait(seconds):
            raise FolderOwned(f"{path} is not waited for any more")

    try:
        return await asyncio.to_thread(claim_run, path, wait_s, tell, pause)
    finally:
        cancelled.set()


async def train(
    job: JobSpec,
    model: ModelFolder,
    runs: Path,
    claimed: Claim | None,
    address: str | None,
    operator: Operator,
    watch: Watch | None = None,
    given: Sequence[str] = (),
    *,
    must_resume: bool = False,
) -> Outcome:
    """Train a job until it is done or a signal arrives.

    Args:
        job: The job.
        model: The folder of its model.
        runs: Folder in which the run gets a folder, if none is claimed.
        claimed: Run folder. Training resumes from what is in it, so a lost job is restarted by the same call.
        address: Ray cluster; None starts a local one.
        operator: The operator's configuration.
        watch: Follows a job of a server. The endpoints of such a job were tried when it was created, so they are not
            tried here, and one that fails now is retried.
        given: The job on the command line, its file and options, for the commands that are shown at the end.
        must_resume: Whether the claimed folder must have a checkpoint.

    Raises:
        RftError: The run failed.
    """
    if must_resume and claimed is not None and not RunFolder(claimed.path).resumes:
        raise InvalidJob(f"{claimed.path} has no checkpoint to resume from")
    async with _run(job, model, runs, address, claimed, operator, watch, given=given) as run:
        await run.train()
    return run.outcome


async def evaluate_model(
    job: JobSpec, model: ModelFolder, file: str, samples: int, runs: Path, address: str | None, operator: Operator
) -> Outcome:
    """Grade a model on one of the job's files and save every rollout.

    Raises:
        RftError: The run failed.
    """
    check_gradable(job, file)
    async with _run(job, model, runs, address, None, operator, learner=False) as run:
        await run.evaluation(file, samples)
    return run.outcome


async def look_before(
    job: JobSpec,
    model: ModelFolder,
    look: Look,
    runs: Path,
    address: str | None,
    operator: Operator,
    *,
    folder: Claim | None = None,
    watch: Watch | None = None,
    console: Console | None = None,
    given: Sequence[str] = (),
) -> tuple[Outcome, Readiness | None]:
    """Draw the rows of a job and judge whether to train it; goes on with what is in `folder` if it is given.

    `given` is as for `train`.

    Returns:
        The outcome, and the findings unless it was stopped before it had them.

    Raises:
        RftError: The run failed.
    """
    check_gradable(job, look.file)
    if folder is not None and watch is None and not RunFolder(folder.path).draws:
        raise InvalidJob(f"{folder.path} has no draws to resume from")
    async with _run(
        job, model, runs, address, folder, operator, watch, learner=False, console=console, given=given, reports=False
    ) as run:
        await run.look(look)
    return run.outcome, run.readiness


# -- a run -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _run(
    job: JobSpec,
    model: ModelFolder,
    runs: Path,
    address: str | None,
    claimed: Claim | None,
    operator: Operator,
    watch: Watch | None = None,
    learner: bool = True,
    console: Console | None = None,
    given: Sequence[str] = (),
    reports: bool = True,
) -> AsyncIterator[Run]:
    """Connect, check the job and create the run folder; on exit close everything and write the report.

    With `reports` the report is written as the run goes, too. A run that has begun in the folder `claimed` is resumed.
    """
    console, store = console or Console(), open_store(operator)
    tell = partial(console.print, soft_wrap=True, markup=False)
    before = None
    if claimed is not None:
        await asyncio.to_thread(restore, claimed.path, store, tell, owner=claimed if learner else None)
        before = RunFolder(claimed.path, at=claimed.at)
        before.now.unlink(missing_ok=True)  # of a driver that was killed
    resumes = before is not None and (before.resumes if learner else bool(before.draws))
    began = Began.of(before) if before is not None and resumes else None
    job = job.model_copy(update={"model": str(model.path)})
    job = job if began is None else began.keep(job)
    with ray_session(address) as nodes, Signals() as signals, ExitStack() as owning:
        with checking():
            prepared = await prepare(
                job,
                model,
                nodes,
                runs,
                operator,
                dry_run=watch is None,
                learner=learner,
                began=began,
                accepted=began is not None or watch is not None,
            )
        print_plan(console, prepared)
        if watch is not None:
            watch.prepared(prepared)
        if claimed is None:
            new = new_run_folder(runs, job.suffix)
            claimed = owning.enter_context(await claim_run_soon(new, 0.0, tell))
        folder = RunFolder(claimed.path, operator.records, claimed.at)
        as_it_goes = f" (its {folder.report.name} is written as the run goes)" if reports else ""
        _print_line(console, "run folder", f"{folder.path}{as_it_goes}")
        view = LiveView(prepared.plan.steps, console)
        exported = MetricsAddress.of(folder.path.name, local=is_local(address))
        tracer = tracer_of(operator.traces, "driver", exported, every=True)
        metrics = MetricsSink(exported, folder.path, tracer=tracer)
        resumed = began is not None
        run = Run(prepared, operator, store, folder, view, metrics, signals, console, watch, resumed, given, reports)
        async with ended_well(run, view, signals, claimed):
            yield run


@asynccontextmanager
async def ended_well(run: Run, view: LiveView, signals: Signals, claimed: Claim) -> AsyncIterator[None]:
    """Context manager of a run's work: records how it ends, and closes the run.

    Raises:
        FolderLost: Another process has taken over the run's folder.
        RftError: The disk of the run's folder is full, or cannot be written.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    claimed.when_lost(lambda: loop.call_soon_threadsafe(task.cancel))
    try:
        with view:
            yield
    except asyncio.CancelledError:
        run.cut_short()  # by a signal, cancelled by the server, or by the loss of the folder
        try:
            claimed.check()
        except FolderLost as lost:
            run.failed(lost)
            raise
        if not signals.count:
            raise
    except OSError as error:
        run.failed(error)
        claimed.check()  # it has no folder any more if another process has taken it over
        if error.errno not in DISK_ERRORS:
            raise
        raise RftError(
            f"cannot write to {run.path}: {error.strerror}", public=f"cannot write to the run: {error.strerror}"
        ) from error
    except Exception as error:
        run.failed(error)
        raise
    finally:
        with signals.graceful(lambda: None):  # a first signal that arrives now has nothing left to stop
            await asyncio.shield(run.close())


def _print_line(console: Console, label: str, text: str) -> None:
    """A line that can be copied: it is never wrapped."""
    console.print(f"{label + ':':<17}{escape(text)}", soft_wrap=True, highlight=False)


class Run:
    """One run: the actors that it starts, and its steps."""

    def __init__(
        self,
        prepared: Prepared,
        operator: Operator,
        store: CheckpointStore | None,
        folder: RunFolder,
        view: LiveView,
        metrics: MetricsSink,
        signals: Signals,
        console: Console,
        watch: Watch | None,
        resumed: bool,
        given: Sequence[str],
        reports: bool,
        actors: Callable[..., RunActors] = RunActors,
    ) -> None:
        self.outcome: Outcome = "done"
        self.readiness: Readiness | None = None
        self._error = ""
        self._cut_short = False
        self._resumed = resumed
        self._prepared = prepared
        self._folder = folder
        self._view = view
        self._metrics = metrics
        self._given = given
        self._status = RayJobStatus(folder.path.name)
        self._progress = ProgressReports(prepared.plan, len(prepared.validation), len(prepared.test))
        self._report = ReportWriter(folder.path) if reports else None
        sinks: list[Sink] = [folder, view, metrics, self._status, *([] if watch is None else [watch])]
        sinks += [self._progress, *([] if self._report is None else [self._report])]
        info = RunInfo(folder.path.name, folder.path, public_job(prepared.job))
        plugins = [*load_plugins(info), *load_integrations(prepared.job.integrations, operator.integrations, info)]
        self._traces = StepTraces(metrics.tracer)
        self._stream = EventStream(folder.path.name, [*sinks, self._traces], [folder, metrics, self._traces], plugins)
        self._copies = None if store is None else Copies(store, folder.path, self._stream.emit)
        self._signals = signals
        self._console = console
        self._operator = operator
        self._watch = watch
        self._actors = actors(prepared, operator, folder, metrics, self._stream.emit, self._lay_out_again)
        folder.write_job(prepared.job, prepared.plan, prepared.record())
        self._stream.emit(JobStarted(method=prepared.job.method.type, total_steps=prepared.plan.steps), skip=view)
        self._emit_choices(skip=view)  # printed with the plan
        changes = prepared.changes if watch is None else ()  # a server's job is changed by its operator only
        for change in (*changes, *prepared.layout_changes):
            self._stream.emit(SettingChanged(setting=change.setting, now=change.now, was=change.was), skip=view)
        for warning in prepared.warnings:
            self._stream.emit(Notice(text=warning), skip=view)  # printed with the plan
        for unsafe in () if watch is not None else (stop_warning(prepared.stop), folder_warning(folder.path)):
            if unsafe is not None:
                self._stream.emit(Notice(text=unsafe))

    def _emit_choices(self, skip: Sink | None = None) -> None:
        for choice in self._prepared.choices:
            self._stream.emit(choice, skip=skip)

    def _lay_out_again(self, prepared: Prepared) -> None:
        """Record another layout, chosen because other GPUs are free than when the job was checked."""
        was, now = layout_text(self._prepared.placement), layout_text(prepared.placement)
        self._prepared = prepared
        self._folder.write_job(prepared.job, prepared.plan, prepared.record())
        if self._watch is not None:
            self._watch.prepared(prepared)
        self._stream.emit(SettingChanged(setting="cluster", now=now, was=was))
        self._emit_choices()

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._folder.path

    def cut_short(self) -> None:
        """Record that the run ends at once; nothing more is copied to the checkpoint store."""
        self.outcome, self._cut_short = "stopped", True
        if self._copies is not None:
            self._copies.stop()

    def failed(self, error: Exception) -> None:
        """Record the error that ends the run."""
        self.outcome = "failed"
        self._traces.failed(error)
        self._error = str(error) if isinstance(error, RftError) else f"{type(error).__name__}: {error}"

    async def train(self) -> None:
        if self._prepared.job.method.type == "supervised":
            await self.supervised()
        else:
            await self.reinforcement()

    async def reinforcement(self) -> None:
        checkpoints, journal = self._checkpoints(), Journal(self._folder.journal)
        await self._actors.start()
        prepared, job = self._prepared, self._prepared.job
        fleet, learner = self._actors.fleet, self._actors.learner
        self._progress.start(fleet.board, self._stream.emit)
        before = self._folder.evaluations().get("test-before")
        if prepared.test and before is None and not journal.has_batches:
            before, _ = await self._grade(fleet, prepared.test, "test-before", prepared.plan.eval_samples)
        algorithm = job.reinforcement.algorithm
        if prepared.placement.turns:  # engines never sample while the learner learns, so nothing can be stale
            algorithm = algorithm.model_copy(update={"max_staleness": 0})
        config = LoopConfig(
            prepared.plan,
            algorithm,
            job.seed,
            job.reinforcement.grader.pass_threshold,
            job.cluster.checkpoint_interval,
            job.reinforcement.early_stop,
        )
        loop = Loop(config, prepared.tasks, prepared.validation, fleet, learner, checkpoints, journal, self._stream)
        self._progress.of_loop(lambda: loop.forming)
        await self._run_loop(loop)
        if prepared.test and self.outcome == "done":
            await learner.rest()
            fleet = await self._fleet_of_best() if loop.stopped_early else fleet
            after, _ = await self._grade(fleet, prepared.test, "test-after", prepared.plan.eval_samples)
            if before is not None:
                self._view.stop()
                self._console.print(before_after_table(before, after))
        if self.outcome == "done":
            await asyncio.to_thread(self._folder.flush)
            if (cheaper := await asyncio.to_thread(fewer_calls, self._folder)) is not None:
                self._stream.emit(cheaper)
            steps, overlaps = await asyncio.to_thread(self._folder.metrics), algorithm.max_staleness > 0
            if (compared := compare_sides(steps, prepared.placement, overlaps=overlaps)) is not None:
                self._stream.emit(compared)

    async def _fleet_of_best(self) -> Fleet:
        """Engines with the best checkpoint, the model of a job that has stopped early."""
        best, latest = best_checkpoint(self._folder.checkpoints), latest_checkpoint(self._folder.checkpoints)
        if best is not None and best != latest:
            self._progress.close()
            await self._actors.start_again(self._prepared.graded(best[0]))
            self._progress.start(self._actors.fleet.board, self._stream.emit)
        return self._actors.fleet

    async def supervised(self) -> None:
        checkpoints = self._checkpoints()
        await self._actors.start()
        prepared, job = self._prepared, self._prepared.job
        loop = SupervisedLoop(
            prepared.plan,
            job.seed,
            prepared.tasks,
            prepared.validation,
            partial(samples_of, prepared.renderer),
            self._actors.learner,
            checkpoints,
            job.cluster.checkpoint_interval,
            self._stream,
        )
        await self._run_loop(loop)

    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self._folder.checkpoints, self._copies, shown=self._folder.path / "checkpoints")

    async def _run_loop(self, loop: Loop | SupervisedLoop) -> None:
        """Run a loop until it is done or a signal arrives."""
        if self._resumed:
            await loop.resume({int(metrics["step"]) for metrics in self._folder.metrics()})
        self._stream.emit(PhaseBegan(phase="training"))
        with self._signals.graceful(loop.stop):
            await loop.run()
        if self._signals.count:
            self.outcome = "stopped"

    async def evaluation(self, file: str, samples: int) -> None:
        prepared = self._prepared
        tasks = {"training_file": prepared.tasks, "validation_file": prepared.validation, "test_file": prepared.test}
        await self._actors.start()
        self._progress.totals["test"] = len(tasks[file]) * samples
        self._progress.start(self._actors.fleet.board, self._stream.emit)
        name = f"eval-{file.removesuffix('_file')}"
        evaluation, _ = await self._grade(self._actors.fleet, tasks[file], name, samples)
        self._view.stop()
        self._console.print(before_after_table(evaluation, None))

    async def look(self, look: Look) -> None:
        """Draw the rows and judge; the page is in the run folder."""
        await self._actors.start()
        self._progress.start(self._actors.fleet.board, self._stream.emit)

        async def draw(tasks: Sequence[Task], name: str) -> list[Group]:
            self._progress.totals["test"] = len(tasks) * look.samples
            as_training = self._prepared.job.reinforcement.algorithm.temperature
            _, groups = await self._grade(self._actors.fleet, tasks, name, look.samples, as_training)
            return groups

        found = await look_at(self._prepared, self._folder, look, draw, self._operator)
        self.readiness = found
        self._stream.emit(ReadinessJudged(verdict=found.verdict, reasons=tuple(found.codes)))
        await asyncio.to_thread(write_page, self._folder, found, self._prepared.job)

    async def close(self) -> None:
        """Stop the actors, release resources, flush the sinks and write the report."""
        self._progress.close()
        await self._actors.shutdown()
        if self._copies is not None and not self._cut_short:
            with self._signals.graceful(self._copies.stop):
                await self._copies.finish()
        self._stream.emit(JobEnded(outcome=self.outcome, error=self._error))
        await asyncio.to_thread(self._stream.close)
        await self._status.ended()
        self._view.stop()
        await asyncio.to_thread(self._traces.close)
        self._metrics.close()
        self._folder.close()
        if self._report is not None:
            self._report.close()
        show = partial(_print_line, self._console)
        show("run folder", str(self._folder.path))
        problems = list(self._folder.problems)
        try:
            page = page_of(self._folder.path) if self.readiness is not None else write_report(self._folder)
            show("report", str(self._folder.path / page.name))
        except OSError as error:
            problems.append(f"cannot write the report: {error.strerror}")
        for problem in problems:
            self._console.print(f"[yellow]warning[/] {escape(problem)}", soft_wrap=True, highlight=False)
        for label, text in next_steps(self._folder, self._given):
            show(label, text)
        if self.outcome != "done" and self._folder.resumes:
            latest = latest_checkpoint(self._folder.checkpoints)
            where = "the start" if latest is None else latest[0].name
            show("to resume", f"{self._again('train')}  # from {where}")
        elif self.outcome != "done" and self._folder.draws:
            show("to resume", self._again("ready"))

    def _again(self, command: str) -> str:
        """The command that goes on with the run."""
        return shlex.join(["agent-rft", command, *(self._given or ["JOB"]), "--resume", str(self._folder.path)])

    async def _grade(
        self, fleet: Fleet, tasks: Sequence[Task], name: str, samples: int, temperature: float | None = None
    ) -> tuple[Evaluation, list[Group]]:
        self._stream.emit(PhaseBegan(phase="grading", detail=f"{len(tasks)} rows ({name})"))
        reinforcement = self._prepared.job.reinforcement
        if temperature is None:
            temperature = reinforcement.algorithm.temperature_of_evaluations
        threshold = reinforcement.grader.pass_threshold
        evaluation, groups = await evaluate(fleet, tasks, "test", samples, temperature, threshold)
        self._stream.groups(name, groups)
        self._stream.emit(Evaluated(name=name, evaluation=evaluation))
        return evaluation, groups
