"""The driver of one run: prepares the job and the run folder, then trains, grades or checks readiness."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from agent_rft.actors.runtime.telemetry.exporter import MetricsAddress
from agent_rft.actors.runtime.telemetry.tracing import create_tracer
from agent_rft.cluster.checks.check_job import check_job
from agent_rft.cluster.checks.offline_checks import check_gradable
from agent_rft.cluster.checks.resumption.recorded_run import RecordedRun
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.cluster.ray_cluster.ray_session import is_local_address, ray_session
from agent_rft.cluster.readiness.readiness_report import Readiness
from agent_rft.cluster.records.run_folder import NAMES, RunFolder, new_run_folder, open_run
from agent_rft.cluster.run.actor_configs import check_spinner, print_plan
from agent_rft.cluster.run.checkpoint_upload import open_store, restore_checkpoints
from agent_rft.cluster.run.job_run import JobRun
from agent_rft.cluster.run.readiness_check import ReadinessOptions
from agent_rft.cluster.run.run_end import print_line, record_run_end
from agent_rft.cluster.run.run_outputs import RunOutputs
from agent_rft.cluster.run.sinks.event_stream import RunWatcher
from agent_rft.cluster.run.sinks.metrics_sink import MetricsSink
from agent_rft.cluster.run.stop_signals import StopSignals
from agent_rft.cluster.views.live_view import LiveView
from agent_rft.errors import InvalidJob
from agent_rft.events import Outcome
from agent_rft.rows.ownership import FolderClaim, FolderOwned, Notify, claim_folder, read_silence_s
from agent_rft.spec.job import JobSpec
from agent_rft.spec.operator.operator_config import OperatorConfig

OWNED_FIX = "; pass --wait-for-run 10m to wait until it ends, or train in another folder"


async def check(job: JobSpec, model: ModelFolder, runs: Path, address: str | None, operator: OperatorConfig) -> None:
    """Check a job and print its plan.

    Raises:
        InvalidJob: The job has problems; the error lists all of them.
    """
    console = Console()
    open_store(operator)
    with check_spinner(), ray_session(address) as nodes:
        prepared = await check_job(job, model, nodes, runs, operator)
    print_plan(console, prepared)
    if job.method.reinforcement is not None:
        console.print("trial calls: the check called the grader and each tool of the rows once")
    console.print("[green]the job is ready to train[/]")


def claim_run(path: Path, wait_s: float, notify: Notify, pause: Callable[[float], None] = time.sleep) -> FolderClaim:
    """Make this process the owner of a run folder; wait up to `wait_s` for the current owner to end.

    Raises:
        OutdatedFormat: A version before 0.2.0 wrote the folder.
        FolderOwned: Another process still owns the folder.
    """
    open_run(path)  # raises before anything in a folder of an older version changes
    return claim_folder(
        path, NAMES, wait_s=wait_s, fix=OWNED_FIX, notify=notify, silence_s=read_silence_s(), pause=pause
    )


async def claim_run_async(path: Path, wait_s: float, notify: Notify) -> FolderClaim:
    """Call `claim_run` in a thread, so that the call can be cancelled while it waits."""
    cancelled = threading.Event()

    def pause(seconds: float) -> None:
        if cancelled.wait(seconds):
            raise FolderOwned(f"stopped waiting for {path}")

    try:
        return await asyncio.to_thread(claim_run, path, wait_s, notify, pause)
    finally:
        cancelled.set()


async def train(
    job: JobSpec,
    model: ModelFolder,
    runs: Path,
    claimed: FolderClaim | None,
    address: str | None,
    operator: OperatorConfig,
    watch: RunWatcher | None = None,
    cli_args: Sequence[str] = (),
    *,
    must_resume: bool = False,
) -> Outcome:
    """Train a job until it is done or a signal arrives.

    Args:
        job: The job.
        model: Folder of the job's model.
        runs: Parent of a new run folder.
        claimed: Claim on a run folder; None creates a folder. If the folder contains a run, training resumes from it.
        address: Address of the Ray cluster; None starts a local cluster.
        operator: The operator's configuration.
        watch: Receives the events of a job that a server started. The server has already tested the job's endpoints,
            so they are not tested again, and calls to failing endpoints are retried.
        cli_args: Job file and options from the command line, for the commands that are printed at the end.
        must_resume: Whether the claimed folder must contain a run that can be resumed.

    Raises:
        RftError: The run failed.
    """
    if must_resume and claimed is not None and not RunFolder(claimed.path).can_resume:
        raise InvalidJob(f"{claimed.path} has no checkpoint to resume from")
    async with _open_run(job, model, runs, address, claimed, operator, watch, cli_args=cli_args) as run:
        await run.train()
    return run.outcome


async def evaluate_model(
    job: JobSpec, model: ModelFolder, file: str, samples: int, runs: Path, address: str | None, operator: OperatorConfig
) -> Outcome:
    """Grade a model on one of the job's files and save every rollout.

    Raises:
        RftError: The run failed.
    """
    check_gradable(job, file)
    async with _open_run(job, model, runs, address, None, operator, learner=False) as run:
        await run.evaluate_file(file, samples)
    return run.outcome


async def check_readiness(
    job: JobSpec,
    model: ModelFolder,
    options: ReadinessOptions,
    runs: Path,
    address: str | None,
    operator: OperatorConfig,
    *,
    claimed: FolderClaim | None = None,
    watch: RunWatcher | None = None,
    console: Console | None = None,
    cli_args: Sequence[str] = (),
) -> tuple[Outcome, Readiness | None]:
    """Sample the rows of a job and judge whether the job is ready to train.

    If `claimed` is set, the readiness check in this run folder is resumed. `cli_args` contains the job file and options
    from the command line.

    Returns:
        The outcome and the findings; the findings are None if the check was stopped before it had any.

    Raises:
        RftError: The run failed.
    """
    check_gradable(job, options.file)
    if claimed is not None and watch is None and not RunFolder(claimed.path).readiness_files:
        raise InvalidJob(f"{claimed.path} has no readiness check to resume")
    async with _open_run(
        job,
        model,
        runs,
        address,
        claimed,
        operator,
        watch,
        learner=False,
        console=console,
        cli_args=cli_args,
        reports=False,
    ) as run:
        await run.run_readiness_check(options)
    return run.outcome, run.readiness


@asynccontextmanager
async def _open_run(
    job: JobSpec,
    model: ModelFolder,
    runs: Path,
    address: str | None,
    claimed: FolderClaim | None,
    operator: OperatorConfig,
    watch: RunWatcher | None = None,
    learner: bool = True,
    console: Console | None = None,
    cli_args: Sequence[str] = (),
    reports: bool = True,
) -> AsyncIterator[JobRun]:
    """Context manager of a run: connects to Ray, checks the job and creates the run folder.

    On exit, it closes all resources and writes the report. If `reports` is true, the report is updated during the run.
    If `claimed` is set, the run in this folder is resumed.
    """
    console, store = console or Console(), open_store(operator)
    notify = partial(console.print, soft_wrap=True, markup=False)
    previous = None
    if claimed is not None:
        await asyncio.to_thread(restore_checkpoints, claimed.path, store, notify, owner=claimed if learner else None)
        previous = RunFolder(claimed.path, owner_folder=claimed.folder)
        previous.status_file.unlink(missing_ok=True)  # left by a killed driver
    resumes = previous is not None and (previous.can_resume if learner else bool(previous.readiness_files))
    began = RecordedRun.load(previous) if previous is not None and resumes else None
    job = job.model_copy(update={"model": str(model.path)})
    job = job if began is None else began.apply_to(job)
    with ray_session(address) as nodes, StopSignals() as signals, ExitStack() as owning:
        with check_spinner():
            prepared = await check_job(
                job,
                model,
                nodes,
                runs,
                operator,
                dry_run=watch is None,
                trains=learner,
                recorded_run=began,
                was_accepted=began is not None or watch is not None,
            )
        print_plan(console, prepared)
        if watch is not None:
            watch.handle_prepared(prepared)
        if claimed is None:
            new = new_run_folder(runs, job.suffix)
            claimed = owning.enter_context(await claim_run_async(new, 0.0, notify))
        folder = RunFolder(claimed.path, operator.records, claimed.folder)
        report_note = f" ({folder.report_file.name} in this folder is updated during the run)" if reports else ""
        print_line(console, "run folder", f"{folder.path}{report_note}")
        view = LiveView(prepared.plan.steps, console)
        exported = MetricsAddress.from_environment(folder.path.name, local=is_local_address(address))
        tracer = create_tracer(operator.traces, "driver", exported, export_all=True)
        metrics = MetricsSink(exported, folder.path, tracer=tracer)
        resumed = began is not None
        outputs = RunOutputs(prepared, operator, store, folder, view, metrics, console, watch, reports)
        run = JobRun(prepared, operator, outputs, signals, resumed, cli_args)
        async with record_run_end(run, signals, claimed):
            yield run
