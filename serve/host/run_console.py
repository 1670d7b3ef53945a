"""The console for one run folder, without a server: `agent-rft train --open`.

    python -m agent_rft.serve.host.run_console FOLDER [--resumed]

The process listens on a loopback port and prints the page's URL, which contains a key that works once. While the run
writes events, the process copies them into a separate database. The process exits when its standard input is closed.
Clients cannot create or change anything.

Only this console accepts one-time keys. One-time keys have a prefix that API keys of a server never have. The page
ignores a key in its URL if the key lacks the prefix. Therefore, opening a link cannot log a user in to a server.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from fastapi import FastAPI

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.events import (
    CheckpointSaved,
    JobEnded,
    Outcome,
    PhaseStarted,
    RolloutDiscarded,
    RolloutsProgressed,
    StepDone,
)
from agent_rft.rows.ownership import strip_owner_folder
from agent_rft.serve.console import console_files, console_session
from agent_rft.serve.host.listener import reserve_port, serve_app
from agent_rft.serve.host.server_state import ServerState, StateLocations
from agent_rft.serve.http.api_app import create_app
from agent_rft.serve.jobs.job_logs import JobLogs
from agent_rft.serve.jobs.job_service import JobService
from agent_rft.serve.jobs.owner_records import JobRecords
from agent_rft.serve.jobs.processes.wire_metrics import format_metrics, make_wire_data
from agent_rft.serve.routes import job_live_status, job_records, job_routes, job_stream
from agent_rft.serve.stores.job_states import JobStatus
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import NewJob
from agent_rft.serve.stores.key_store import ApiKey
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from agent_rft.stored_events import RunEvent

HOST, POLL_S = "127.0.0.1", 1.0
ONE_TIME_PREFIX = "once-"
"""Prefix of one-time keys, which the console's page (`session.svelte.ts`) accepts in its URL."""
STOP_S = 3.0
"""Maximum time in seconds for stopping the console's server."""
STATUS_BY_OUTCOME: dict[Outcome, JobStatus] = {"done": "succeeded", "failed": "failed", "stopped": "cancelled"}


class OneTimeKey:
    """KeyFinder that accepts a key only once. The console's page uses the key to open its session."""

    def __init__(self, key: ApiKey, token: str) -> None:
        self._key = key
        self._unused = {token}

    def find(self, token: str) -> ApiKey | None:
        try:
            self._unused.remove(token)  # atomic: only one of several concurrent requests gets the key
        except KeyError:
            return None
        return self._key


class RunMirror:
    """Mirrors a run as a job in a job store. Methods block while they read files, so call them in a thread."""

    def __init__(self, store: JobStore, runs: Path, run: RunFolder, owner: str, resumed: bool = False) -> None:
        self._resumed = resumed
        self._last_step = 0
        self._store = store
        self._run = run
        self._lines = _read_lines(run.path / "events.jsonl")
        self._outcome: Outcome | None = None
        self._metrics: dict[int, dict[str, float]] = {}
        job = run.job()["job"]
        method = job["method"]
        method.setdefault(method["type"], {}).setdefault("hyperparameters", {})
        new = NewJob(
            owner=owner,
            model=job["model"],
            base=job["model"],
            training_file=job["training_file"],
            validation_file=job.get("validation_file"),
            test_file=job.get("test_file"),
            method=method,
            model_options=job.get("model_options"),
            seed=job.get("seed", 0),
            suffix=run.path.name,
            labels=None,
            sealed_spec="",
            digest=run.path.name,
        )
        self.id = store.create(new)[0].id
        store.move(self.id, "queued")
        store.move(self.id, "running")
        runs.mkdir(exist_ok=True)
        (runs / self.id).symlink_to(run.path.resolve())

    def catch_up(self) -> None:
        """Copy the events that the run wrote since the last call."""
        for line in self._lines:
            if line is None:
                break
            with suppress(ValueError):  # a full disk truncated the line
                self._copy(RunEvent.from_line(json.loads(line)))
        if self._resumed:  # a JobEnded event from before the run was resumed
            self._resumed, self._outcome = False, None
        # The job is still running in the store if the run was not resumed after its JobEnded event.
        if self._outcome is not None and self._store.get(self.id).status == "running":
            self._store.move(self.id, STATUS_BY_OUTCOME[self._outcome])

    def _copy(self, event: RunEvent) -> None:
        self._outcome = event.event.outcome if isinstance(event.event, JobEnded) else None
        match event.event:
            case StepDone():
                metrics = self._read_metrics(event.step)
                if metrics is None:  # lost because the disk was full
                    return
                data = make_wire_data(metrics)
                self._store.add_event(self.id, "info", format_metrics(metrics), type="metrics", data=data)
                return
            case RolloutDiscarded() | RolloutsProgressed() | PhaseStarted(is_quiet=True):
                return
            case CheckpointSaved(path=path):
                self._store.add_checkpoint(self.id, event.step, str(strip_owner_folder(Path(path).resolve())), {})
        data = {"kind": event.kind, "version": event.version, "step": event.step, **event.data}
        self._store.add_event(self.id, event.level, event.message, data=data)

    def _read_metrics(self, step: int) -> dict[str, float] | None:
        """Return a step's metrics, or None if they are missing.

        Metrics are cached. If a resumed run repeats a step, they are read again.
        """
        if step not in self._metrics or step <= self._last_step:
            self._metrics = {int(metrics["step"]): metrics for metrics in self._run.metrics()}
        self._last_step = step
        return self._metrics.get(step)


def _read_lines(path: Path) -> Iterator[bytes | None]:
    """Yield the lines of a file that is being written, and None while the next line is incomplete."""
    while not path.exists():
        yield None
    with path.open("rb") as file:
        partial = b""
        while True:
            partial += file.readline()
            if partial.endswith(b"\n"):
                yield partial
                partial = b""
            else:
                yield None


def make_console_app(state: ServerState, mirror: RunMirror, key: ApiKey, token: str) -> FastAPI:
    """Return the console app for a mirrored run, with read-only routes.

    A client can use `token` once to open a session. The session has the permissions of `key`.
    """
    store, runs = JobStore(state.database), state.folder / "runs"
    logs = JobLogs(state.folder)
    jobs = JobService(store, state.models, state.files, state.secrets, DEFAULT_CONFIG, logs)
    routers = [
        job_routes.make_router(jobs),
        job_records.make_router(JobRecords(store, runs)),
        job_stream.make_router(store, runs),
        job_live_status.make_router(store, runs),
        console_session.make_router(state.sessions, read_only=True),
    ]
    app = create_app(routers, OneTimeKey(key, token), sessions=state.sessions, key_cache_s=0.0)
    console_files.mount_console(app)
    return app


async def serve(
    run: RunFolder, folder: Path, on_url: Callable[[str], None], end: asyncio.Event, *, resumed: bool = False
) -> None:
    """Serve the console for a run until `end` is set.

    Args:
        run: Folder of the run to show.
        folder: Folder for the console's database and files.
        on_url: Called with the page's URL.
        end: Set when the console must stop.
        resumed: Whether the run was resumed.
    """
    state = ServerState(StateLocations(folder), DEFAULT_CONFIG)
    try:
        key, _ = state.keys.create("this run", ["read"])
        token = ONE_TIME_PREFIX + secrets.token_urlsafe(32)
        with reserve_port(HOST, 0) as port:
            while not run.job():
                if await _wait_for_end(end):
                    return
            mirror = await asyncio.to_thread(RunMirror, JobStore(state.database), folder / "runs", run, key.id, resumed)
            async with serve_app(make_console_app(state, mirror, key, token), HOST, port, stop_s=STOP_S):
                on_url(f"http://{HOST}:{port}/#key={token}")
                await asyncio.to_thread(mirror.catch_up)
                while not await _wait_for_end(end):
                    await asyncio.to_thread(mirror.catch_up)
    finally:
        state.close()


async def _wait_for_end(end: asyncio.Event) -> bool:
    """Wait up to POLL_S seconds and return whether `end` is set."""
    try:
        async with asyncio.timeout(POLL_S):
            return await end.wait()
    except TimeoutError:
        return False


async def main(run: Path, resumed: bool) -> None:
    end = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_reader(sys.stdin.fileno())  # a closed pipe stays readable
        end.set()

    loop.add_reader(sys.stdin.fileno(), stop)
    with tempfile.TemporaryDirectory(prefix="agent-rft-console-") as folder:
        await serve(RunFolder(run), Path(folder), lambda url: print(url, flush=True), end, resumed=resumed)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), resumed="--resumed" in sys.argv[2:]))
