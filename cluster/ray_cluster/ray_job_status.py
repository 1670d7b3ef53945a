"""Status message and final status of the Ray job that this process runs in, and the wait time of `ray job stop`.

The dashboard and `ray job list` show the message. Outside a submitted Ray job, nothing is written. Failed writes are
ignored.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ray.exceptions import RayError
from ray.job_submission import JobStatus

from agent_rft.cluster.planning.cluster_plan import StopTime
from agent_rft.cluster.ray_cluster.ray_internals import job_status_client, read_submitted_job
from agent_rft.cluster.records.redaction import to_plain_json
from agent_rft.errors import InvalidJob, OutdatedFormat
from agent_rft.events import PhaseStarted, StepDone
from agent_rft.stored_events import RunEvent

WRITE_TIMEOUT_S = 10
REFUSED = 2
"""Exit code of an invalid job."""
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
NEEDED_TO_STOP_S = 60
"""Minimum seconds that `ray job stop` should wait before it kills a driver."""
RAYS_STOP_WAIT_S = 3
"""Ray's default time between SIGTERM and SIGKILL when it stops a driver."""

RAYS_COPIES = "working_dir_files"

PASSING = {"tool_failed", "grader_failed", "session_failed", "no_free_resources", "no_cluster"}
"""Codes of temporary problems, such as an endpoint that does not respond yet."""


def find_submission_id(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the submission id of the Ray job whose entry point this process is; None outside a Ray job."""
    found: str | None = read_submitted_job(environment).get("metadata", {}).get("job_submission_id")
    return found


def check_stop_wait(stop: StopTime | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return a warning if `ray job stop` would kill this process before its checkpoint is written, else None."""
    wait_s = int(environment.get(STOP_WAIT, RAYS_STOP_WAIT_S))
    needed_s = NEEDED_TO_STOP_S if stop is None else max(NEEDED_TO_STOP_S, stop.wait_s)
    if find_submission_id(environment) is None or wait_s >= needed_s:
        return None
    fix = f'submit the job with --runtime-env-json \'{{"env_vars": {{"{STOP_WAIT}": "{needed_s}"}}}}\''
    return f"`ray job stop` kills this job after {wait_s} s, before its checkpoint is written: {fix}"


def stop_without_retry(error: InvalidJob | OutdatedFormat, environment: Mapping[str, str] = os.environ) -> None:
    """Set the status of this process's Ray job to STOPPED, so that KubeRay does not retry it.

    Does nothing if the next try may succeed. The status remains STOPPED when this process exits. If Ray does not
    respond, KubeRay retries the job.
    """
    job, problems = find_submission_id(environment), error.problems if isinstance(error, InvalidJob) else []
    if job is None or (problems and all(problem.code in PASSING for problem in problems)):
        return
    client = job_status_client(environment["RAY_ADDRESS"])
    message = str(to_plain_json(f"the job was refused: {error}"))
    with suppress(RayError, RuntimeError):
        asyncio.run(
            client.put_status(
                job, JobStatus.STOPPED, message=message, driver_exit_code=REFUSED, timeout=WRITE_TIMEOUT_S
            )
        )


def check_run_folder(run: Path) -> str | None:
    """Return a warning if the run folder is in Ray's copy of `--working-dir`, which Ray deletes; else None."""
    if RAYS_COPIES not in run.resolve().parts:
        return None
    fix = "set --runs or --run-folder to an absolute path outside the working directory"
    return f"the run folder is in Ray's copy of the working directory, which Ray deletes: {fix}"


class RayJobStatus:
    """Sink that updates the status message of this process's Ray job, such as `RUN: step 3 of 15, reward 0.42`."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._job = find_submission_id()
        self._text: str | None = None
        self._writing: asyncio.Task[None] | None = None

    def handle_event(self, event: RunEvent) -> None:
        match event.event:
            case PhaseStarted(is_quiet=False):
                self._set_message(event.message)
            case StepDone(metrics=metrics, total_steps=total_steps):
                numbers = [("reward", "train_mean_reward"), ("loss", "loss")]
                shown = [f"{label} {metrics[name]:.3f}" for label, name in numbers if name in metrics][:1]
                self._set_message(", ".join([f"step {event.step} of {total_steps}", *shown]))

    def close(self) -> None:
        """Do nothing; part of the sink protocol. Call `stop` to stop writing."""

    async def stop(self) -> None:
        """Stop updating the job's status message. A later update would overwrite Ray's own final message."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait({self._writing})

    def _set_message(self, text: str) -> None:
        """Write a message in the background. It replaces any message that still waits to be written."""
        if self._job is None:
            return
        self._text = str(to_plain_json(f"{self._run}: {text}"))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(self._job))

    async def _write(self, job: str) -> None:
        client = job_status_client()
        while self._text is not None:
            text, self._text = self._text, None
            try:
                await client.put_status(job, JobStatus.RUNNING, message=text, timeout=WRITE_TIMEOUT_S)
            except (RayError, RuntimeError):  # Ray does not respond, or the job is being stopped
                return
