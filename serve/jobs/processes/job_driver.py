"""Driver of one job of a server, run as a Ray job.

    python -m agent_rft.serve.jobs.processes.job_driver --settings FILE --job ID --attempt N   # trains
    python -m agent_rft.serve.jobs.processes.job_driver --settings FILE --job ID --check OUT   # checks the job

Every few seconds, a driver checks that its job is still `running` in the store and has no newer driver. If not, the
driver exits; if the job was paused, it saves a checkpoint first. Exit code 0 means that the store contains the
outcome. After any other exit code, another driver resumes the job from its last checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from agent_rft.actors.runtime.process_setup import drop_lost_output, end_process, limit_process, open_standard_files
from agent_rft.cluster.checks.check_job import check_job
from agent_rft.cluster.checks.limit_checks import check_row_limits
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.cluster.ray_cluster.ray_job_status import NEEDED_TO_STOP_S
from agent_rft.cluster.ray_cluster.ray_session import ray_session
from agent_rft.cluster.readiness.readiness_report import Readiness
from agent_rft.cluster.records.redaction import to_plain_json
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.run.driver import check_readiness, claim_run_async, train
from agent_rft.cluster.run.readiness_check import ReadinessOptions
from agent_rft.cluster.views.readiness.readiness_page import readiness_page_path
from agent_rft.errors import InvalidJob, LearnerFailed, Problem, RftError
from agent_rft.events import Outcome
from agent_rft.rows.ownership import FolderLost, FolderOwned
from agent_rft.serve.jobs.client_errors import add_log_hint, convert_error, hide_details
from agent_rft.serve.jobs.job_logs import JobLogs
from agent_rft.serve.jobs.job_manager import PAUSING
from agent_rft.serve.jobs.job_request import make_model_id
from agent_rft.serve.jobs.processes.check_process import CPU_S, MEMORY_BYTES, OUT_OF_MEMORY
from agent_rft.serve.jobs.processes.driver_settings import DriverSettings, ServerAccess
from agent_rft.serve.jobs.processes.store_sink import StoreSink
from agent_rft.serve.jobs.processes.wire_metrics import result_csv
from agent_rft.serve.stores.database import DatabaseError
from agent_rft.serve.stores.job_states import IllegalStateChange, JobStatus
from agent_rft.serve.stores.job_tables import JobError, JobRecord
from agent_rft.spec.job import JobSpec

HEARTBEAT_S = 2.0
LOST = 3
"""Exit code if another driver must continue the job."""


async def check(server: ServerAccess, job_id: str) -> list[Problem]:
    """Check a job, including its endpoints. Print the full problems, and return the problems as clients see them."""
    record = server.store.get(job_id)
    spec, settings = server.open_spec(record), server.settings
    validation = None if spec.validation_file is None else Path(spec.validation_file)
    samples = None if record.readiness is None else record.readiness["samples"]
    found = check_row_limits(server.operator.jobs, Path(spec.training_file), validation, samples)
    with ray_session(settings.ray_address()) as nodes:
        try:
            model, learner = ModelFolder.find(spec.model), record.readiness is None
            await check_job(spec, model, nodes, settings.runs, server.operator, known_problems=found, trains=learner)
        except InvalidJob as error:
            for problem in error.problems:
                print(problem)
            return [hide_details(problem, job_id, server.client_names(record)) for problem in error.problems]
    return []


async def run_job(server: ServerAccess, job_id: str, attempt: int) -> int:
    """Train a job or run its readiness check, and return the exit code."""
    store, settings = server.store, server.settings
    if store.heartbeat(job_id, attempt) != "running":
        return 0
    record = store.get(job_id)
    folder = settings.runs / job_id
    name = partial(make_model_id, record.base, settings.organization, record.suffix, job_id)
    names = server.client_names(record)
    sink = StoreSink(store, server.registry, job_id, attempt, record.base, record.owner, folder, name, names)
    job = server.open_spec(record)
    training = asyncio.create_task(_run(server, record, job, folder, sink))
    loop = asyncio.get_running_loop()
    ended = threading.Event()

    def on_status(status: JobStatus | None) -> None:
        loop.call_soon_threadsafe(_apply_status, training, status)

    heartbeats = partial(_send_heartbeats, server, job_id, attempt, ended, on_status)
    threading.Thread(target=heartbeats, daemon=True, name="heartbeat").start()
    try:
        outcome, found = await training
        await asyncio.to_thread(sink.close)
        if found is not None:
            await asyncio.to_thread(_store_findings, server, record, attempt, folder, found)
        elif outcome == "done":
            await asyncio.to_thread(_succeed, server, record, attempt, sink, folder)
        return 0 if outcome == "done" else _finish_stopped(server, job_id, attempt)
    except asyncio.CancelledError:
        return 0
    except (LearnerFailed, FolderOwned, FolderLost) as error:
        store.update_for_driver(job_id, attempt, driver_message=str(to_plain_json(error.public_message)))
        traceback.print_exception(error)
        return LOST
    except RftError as error:
        _fail(server, job_id, attempt, convert_error(error, job_id, names))
        traceback.print_exception(error)
        return 0
    finally:
        ended.set()
        await asyncio.to_thread(sink.close)


async def _run(
    server: ServerAccess, record: JobRecord, job: JobSpec, folder: Path, sink: StoreSink
) -> tuple[Outcome, Readiness | None]:
    """Train the job, or run its readiness check. Resumes from the state in `folder`.

    Raises:
        FolderOwned: The previous driver has not exited.
    """
    address = server.settings.ray_address()
    claimed = await claim_run_async(folder, NEEDED_TO_STOP_S, partial(print, flush=True))
    try:
        model = ModelFolder.find(job.model)
        if record.readiness is None:
            return await train(job, model, folder.parent, claimed, address, server.operator, sink), None
        readiness = ReadinessOptions(**record.readiness)
        return await check_readiness(
            job, model, readiness, folder.parent, address, server.operator, claimed=claimed, watch=sink
        )
    finally:
        await asyncio.to_thread(claimed.release)


# -- the state in the store --------------------------------------------------------------------------------------------


def _send_heartbeats(
    server: ServerAccess,
    job_id: str,
    attempt: int,
    ended: threading.Event,
    on_status: Callable[[JobStatus | None], object],
) -> None:
    """Send heartbeats until the job ends. Blocks the calling thread."""
    logs = JobLogs(Path(server.settings.folder))
    while not ended.wait(HEARTBEAT_S):
        logs.truncate(job_id, attempt)
        try:
            status = server.store.heartbeat(job_id, attempt)
        except DatabaseError:  # the database restarts, for example; the manager cannot read heartbeats either
            continue
        if status != "running":
            on_status(status)
            return


def _apply_status(training: asyncio.Task[tuple[Outcome, Readiness | None]], status: JobStatus | None) -> None:
    if status in PAUSING:
        os.kill(
            os.getpid(), signal.SIGTERM
        )  # the first SIGTERM ends a run cleanly: see agent_rft.cluster.run.stop_signals
    else:
        training.cancel()


# -- outcomes ----------------------------------------------------------------------------------------------------------


def _succeed(server: ServerAccess, record: JobRecord, attempt: int, sink: StoreSink, folder: Path) -> None:
    sink.sync_checkpoints()
    model = sink.register_final()
    results = server.store_result("step_metrics.csv", result_csv(RunFolder(folder).metrics()), record.owner)
    try:
        server.store.move(
            record.id, "succeeded", attempt=attempt, fine_tuned_model=model, result_files=[results], driver_message=None
        )
    except IllegalStateChange:  # a client has just cancelled the job
        return
    server.store.add_event(record.id, "info", f"New fine-tuned model created: {model}")
    server.store.add_event(record.id, "info", "The job has successfully completed")


def _store_findings(server: ServerAccess, record: JobRecord, attempt: int, folder: Path, found: Readiness) -> None:
    results = [
        server.store_result(path.name, path.read_bytes(), record.owner, owner_only=True)  # rows and their rewards
        for path in (folder / "readiness.json", readiness_page_path(folder))
    ]
    with suppress(IllegalStateChange):  # a client has just cancelled the job
        server.store.move(
            record.id,
            "succeeded",
            attempt=attempt,
            findings=found.as_json(with_rows=False),
            result_files=results,
            driver_message=None,
        )


def _finish_stopped(server: ServerAccess, job_id: str, attempt: int) -> int:
    if server.store.heartbeat(job_id, attempt) in PAUSING:
        server.store.add_event(job_id, "info", "The job is paused; its resources are free")
        return 0
    server.store.update_for_driver(job_id, attempt, driver_message="stopped by a signal")
    return LOST


def _fail(server: ServerAccess, job_id: str, attempt: int, error: JobError) -> None:
    try:
        server.store.move(job_id, "failed", attempt=attempt, error=error)
    except IllegalStateChange:
        return
    server.store.add_event(job_id, "error", f"The job failed: {error.message}")


def _unexpected_error(error: Exception, job_id: str) -> JobError:
    message = add_log_hint("the driver failed with an unexpected error", job_id)
    return JobError("internal_error", message, log=str(to_plain_json(f"{type(error).__name__}: {error}")))


def main() -> None:
    parser = argparse.ArgumentParser(description="Run one job of a server. With --check, only check the job.")
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--attempt", type=int, default=0)
    parser.add_argument("--check", type=Path, help="only check the job, and write the problems to this file")
    options = parser.parse_args()
    if options.check is not None:
        limit_process(CPU_S, MEMORY_BYTES)
    open_standard_files()
    drop_lost_output("stdout")  # the disk that holds the output may be full
    drop_lost_output("stderr")
    server = ServerAccess(DriverSettings.read(options.settings))
    try:
        if options.check is not None:
            problems = asyncio.run(check(server, options.job))
            options.check.write_text(json.dumps([asdict(problem) for problem in problems]))
            code = 0
        else:
            code = asyncio.run(run_job(server, options.job, options.attempt))
    except Exception as error:  # noqa: BLE001 - a bug: another driver would hit it again
        traceback.print_exc()
        if options.check is not None:
            sys.exit(OUT_OF_MEMORY if isinstance(error, MemoryError) else 1)
        found = (
            convert_error(error, options.job, {})
            if isinstance(error, RftError)
            else _unexpected_error(error, options.job)
        )
        _fail(server, options.job, options.attempt, found)
        code = 0
    finally:
        server.close()
    end_process(code)


if __name__ == "__main__":
    main()
