"""The console over one run folder, without a server: `agent-rft train --open`.

    python -m agent_rft.serve.host.one_run FOLDER [--resumed]

It listens at a loopback port, prints the page's address with a key that works once, and ends when its standard input
does. The run's events are copied into a database of its own as they are written; nothing can be created or changed.
"""

from __future__ import annotations

import asyncio
import json
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
    PhaseBegan,
    RolloutDiscarded,
    RolloutsProgressed,
    StepDone,
)
from agent_rft.rows.ownership import lasting
from agent_rft.run_events import RunEvent
from agent_rft.serve.console import session, static
from agent_rft.serve.host.listener import listening, reserved_port
from agent_rft.serve.host.state import ServerState, StateLocations
from agent_rft.serve.http.app import create_app
from agent_rft.serve.jobs.logs import JobLogs
from agent_rft.serve.jobs.processes.wire_metrics import message_of, wire_data
from agent_rft.serve.jobs.records import JobRecords
from agent_rft.serve.jobs.service import JobService
from agent_rft.serve.routes import fine_tuning, job_now, job_records, job_stream
from agent_rft.serve.stores.job_states import JobStatus
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import NewJob
from agent_rft.serve.stores.keys import ApiKey
from agent_rft.spec.operator.config import NOTHING_ALLOWED

HOST, POLL_S = "127.0.0.1", 1.0
STOP_S = 3.0
"""Pages that follow the run are cut off at the end: nobody waits for them."""
ENDS: dict[Outcome, JobStatus] = {"done": "succeeded", "failed": "failed", "stopped": "cancelled"}


class OneTimeKey:
    """A key that is found once, by the page that it opens; the session goes on without it."""

    def __init__(self, key: ApiKey, token: str) -> None:
        self._key = key
        self._unused = {token}

    def find(self, token: str) -> ApiKey | None:
        try:
            self._unused.remove(token)  # in one step: of requests at the same moment one has it
        except KeyError:
            return None
        return self._key


class Mirror:
    """A run as a job of a store; its calls read files: make them in a thread."""

    def __init__(self, store: JobStore, runs: Path, run: RunFolder, owner: str, resumed: bool = False) -> None:
        self._resumed = resumed
        self._copied = 0
        self._store = store
        self._run = run
        self._lines = _lines(run.path / "events.jsonl")
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
        """Copies what the run wrote since the last call."""
        for line in self._lines:
            if line is None:
                break
            with suppress(ValueError):  # cut off by a full disk
                self._copy(RunEvent.from_line(json.loads(line)))
        if self._resumed:  # the end of an earlier part
            self._resumed, self._outcome = False, None
        if self._outcome is not None and self._store.get(self.id).status == "running":  # no resumed run went on
            self._store.move(self.id, ENDS[self._outcome])

    def _copy(self, event: RunEvent) -> None:
        self._outcome = event.event.outcome if isinstance(event.event, JobEnded) else None
        match event.event:
            case StepDone():
                metrics = self._metrics_of(event.step)
                if metrics is None:  # a full disk took them
                    return
                data = wire_data(metrics)
                self._store.add_event(self.id, "info", message_of(metrics), type="metrics", data=data)
                return
            case RolloutDiscarded() | RolloutsProgressed() | PhaseBegan(quiet=True):
                return
            case CheckpointSaved(path=path):
                self._store.add_checkpoint(self.id, event.step, str(lasting(Path(path).resolve())), {})
        self._store.add_event(self.id, event.level, event.message, data={"kind": event.kind, **event.data})

    def _metrics_of(self, step: int) -> dict[str, float] | None:
        """The metrics of a step, which the run wrote before its event; a resumed run repeats steps."""
        if step not in self._metrics or step <= self._copied:
            self._metrics = {int(metrics["step"]): metrics for metrics in self._run.metrics()}
        self._copied = step
        return self._metrics.get(step)


def _lines(path: Path) -> Iterator[bytes | None]:
    """The lines of a file that is being written, and None whenever there is no whole one yet."""
    while not path.exists():
        yield None
    with path.open("rb") as file:
        begun = b""
        while True:
            begun += file.readline()
            if begun.endswith(b"\n"):
                yield begun
                begun = b""
            else:
                yield None


def app_of(state: ServerState, mirror: Mirror, key: ApiKey, token: str) -> FastAPI:
    """Returns the console over a mirrored run: the routes that only read, and sessions of the one key."""
    store, runs = JobStore(state.database), state.folder / "runs"
    logs = JobLogs(state.folder)
    jobs = JobService(store, state.models, state.files, state.secrets, NOTHING_ALLOWED, logs)
    routers = [
        fine_tuning.make_router(jobs),
        job_records.make_router(JobRecords(store, runs)),
        job_stream.make_router(store, runs),
        job_now.make_router(store, runs),
        session.make_router(state.sessions, read_only=True),
    ]
    app = create_app(routers, OneTimeKey(key, token), sessions=state.sessions, key_cache_s=0.0)
    static.mount(app)
    return app


async def serve(
    run: RunFolder, folder: Path, tell: Callable[[str], None], end: asyncio.Event, *, resumed: bool = False
) -> None:
    """Serves the console over a run until `end`; `tell` gets the page's address, `folder` is for its own files."""
    state = ServerState(StateLocations(folder), NOTHING_ALLOWED)
    try:
        key, token = state.keys.create("this run", ["read"])
        with reserved_port(HOST, 0) as port:
            while not run.job():
                if await _ends(end):
                    return
            mirror = await asyncio.to_thread(Mirror, JobStore(state.database), folder / "runs", run, key.id, resumed)
            async with listening(app_of(state, mirror, key, token), HOST, port, stop_s=STOP_S):
                tell(f"http://{HOST}:{port}/#key={token}")
                await asyncio.to_thread(mirror.catch_up)
                while not await _ends(end):
                    await asyncio.to_thread(mirror.catch_up)
    finally:
        state.close()


async def _ends(end: asyncio.Event) -> bool:
    """Waits a moment; returns whether it is the end."""
    try:
        async with asyncio.timeout(POLL_S):
            return await end.wait()
    except TimeoutError:
        return False


async def main(run: Path, resumed: bool) -> None:
    end = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(sys.stdin.fileno())  # at its end it stays readable
        end.set()

    loop.add_reader(sys.stdin.fileno(), ended)
    with tempfile.TemporaryDirectory(prefix="agent-rft-console-") as folder:
        await serve(RunFolder(run), Path(folder), lambda address: print(address, flush=True), end, resumed=resumed)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), resumed="--resumed" in sys.argv[2:]))
