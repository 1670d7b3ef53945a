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
from agent_rft.actors.runtime.telemetry.tracing import tracer_of
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.cluster.preflight.prepare import prepare
from agent_rft.cluster.preflight.resumption.resumed import Began
from agent_rft.cluster.preflight.static import check_gradable
from agent_rft.cluster.ray_cluster.session import is_local, ray_session
from agent_rft.cluster.readiness.findings import Readiness
from agent_rft.cluster.records.run_folder import NAMES, RunFolder, new_run_folder, open_run
from agent_rft.cluster.run.actor_configs import checking, print_plan
from agent_rft.cluster.run.copies import open_store, restore
from agent_rft.cluster.run.job_run import JobRun
from agent_rft.cluster.run.readiness import Look
from agent_rft.cluster.run.run_end import ended_well, print_line
from agent_rft.cluster.run.run_outputs import RunOutputs
from agent_rft.cluster.run.signals import Signals
from agent_rft.cluster.run.sinks.metrics_sink import MetricsSink
from agent_rft.cluster.run.sinks.stream import Watch
from agent_rft.cluster.views.live import LiveView
from agent_rft.errors import InvalidJob
from agent_rft.events import Outcome
from agent_rft.rows.ownership import Claim, FolderOwned, Tell, claim, silence_s
from agent_rft.spec.job import JobSpec
from agent_rft.spec.operator.config import Operator

OWNED_REMEDY = "; to wait for its end, give --wait-for-run 10m, or train in another folder"


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
) -> AsyncIterator[JobRun]:
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
        print_line(console, "run folder", f"{folder.path}{as_it_goes}")
        view = LiveView(prepared.plan.steps, console)
        exported = MetricsAddress.of(folder.path.name, local=is_local(address))
        tracer = tracer_of(operator.traces, "driver", exported, every=True)
        metrics = MetricsSink(exported, folder.path, tracer=tracer)
        resumed = began is not None
        outputs = RunOutputs(prepared, operator, store, folder, view, metrics, console, watch, reports)
        run = JobRun(prepared, operator, outputs, signals, resumed, given)
        async with ended_well(run, signals, claimed):
            yield run
