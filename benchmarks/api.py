"""Listings of jobs and events over HTTP with 1,000 jobs and 100,000 events: requests a second and the 99th percentile
of their latency, at `--clients` requests in flight. Aim: p99 at most 50 ms.

    python -m benchmarks.api [--database postgresql://...]

The server is a process of its own, on a local port; first pages and deep ones are asked for in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import uvicorn
from sqlalchemy import insert

from cluster.database import Database
from cluster.job_service import JobService
from cluster.job_tables import EventRow, JobRow
from cluster.keys import KeyStore
from cluster.migrate import migrate
from cluster.store import JobStore
from serve.app import create_app
from serve.fine_tuning import make_router
from trainer.operator import Operator, ServerLimits

NUM_JOBS, NUM_EVENTS, BUSY_JOB_EVENTS = 1_000, 100_000, 50_000
START_S = 60.0


def fill(database: Database) -> None:
    """Half of the events are one job's."""
    migrate(database)
    fixed = {"status": "succeeded", "model": "gpt-5", "base": "gpt-5", "owner": "k", "training_file": "file-1"}
    fixed |= {"sealed_spec": "", "digest": "", "result_files": [], "attempt": 1, "failures": 0, "seed": 1}
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": "auto"}}}
    jobs = [
        {"id": f"ftjob-{i}", "created_at": float(i), "moved_at": 0.0, "method": method} | fixed for i in range(NUM_JOBS)
    ]
    data = {"step": 1, "train_mean_reward": 0.5, "scores": {"graders": []}}
    events = [
        {
            "id": f"ftevent-{i}",
            "job_id": f"ftjob-{0 if i < BUSY_JOB_EVENTS else i % NUM_JOBS}",
            "created_at": float(i),
            "level": "info",
            "type": "metrics",
            "message": f"Step {i}/{NUM_EVENTS}, train mean reward=0.5",
            "data": data,
        }
        for i in range(NUM_EVENTS)
    ]
    with database.session() as session:
        session.execute(insert(JobRow), jobs)
        session.execute(insert(EventRow), events)


def serve(url: str, port: int) -> None:
    database = Database(url)
    nothing: object = None
    service = JobService(JobStore(database), nothing, nothing, nothing, Operator())  # type: ignore[arg-type]
    limits = ServerLimits(requests_per_minute=10_000_000)
    app = create_app([make_router(service)], KeyStore(database), limits=limits)
    uvicorn.run(app, port=port, log_level="warning", access_log=False)


async def measure(base_url: str, token: str, clients: int, seconds: float) -> None:
    rng = random.Random(1)
    busy = "/fine_tuning/jobs/ftjob-0/events"
    paths: dict[str, Callable[[], str]] = {
        "jobs, first page": lambda: "/fine_tuning/jobs?limit=20",
        "jobs, deep": lambda: f"/fine_tuning/jobs?limit=20&after=ftjob-{rng.randrange(NUM_JOBS)}",
        "events, first page": lambda: f"{busy}?limit=20",
        "events, deep": lambda: f"{busy}?limit=20&after=ftevent-{rng.randrange(BUSY_JOB_EVENTS)}",
        "events, 100 a page": lambda: f"{busy}?limit=100&after=ftevent-{rng.randrange(BUSY_JOB_EVENTS)}",
    }
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=base_url, headers=headers, timeout=30) as client:
        for name, path in paths.items():
            times = await _load(lambda path=path: client.get(path()), clients, seconds)
            times.sort()
            p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
            print(f"{name:20} {len(times) / seconds:7.0f} requests/s, p50 {p50 * 1e3:5.1f} ms, p99 {p99 * 1e3:5.1f} ms")


async def _load(ask: Callable[[], Awaitable[httpx.Response]], clients: int, seconds: float) -> list[float]:
    end, times = time.perf_counter() + seconds, []

    async def client() -> None:
        while (begun := time.perf_counter()) < end:
            response = await ask()
            assert response.status_code == 200, response.text
            times.append(time.perf_counter() - begun)

    await asyncio.gather(*(client() for _ in range(clients)))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", help="else SQLite in a new folder")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--port", type=int, default=8919)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.database, options.port)
        return
    with tempfile.TemporaryDirectory() as folder:
        url = options.database or f"sqlite:///{Path(folder) / 'state.db'}"
        database = Database(url)
        fill(database)
        _, token = KeyStore(database).create("bench", ["read"])
        database.close()
        command = [sys.executable, "-m", "benchmarks.api", "--serve", "--database", url, "--port", str(options.port)]
        with subprocess.Popen(command) as server:
            try:
                _wait_for(options.port)
                asyncio.run(measure(f"http://127.0.0.1:{options.port}/v1", token, options.clients, options.seconds))
            finally:
                server.terminate()


def _wait_for(port: int) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        try:
            httpx.get(f"http://127.0.0.1:{port}/health")
            return
        except httpx.ConnectError:
            time.sleep(0.2)
    raise RuntimeError("the server did not start")


if __name__ == "__main__":
    main()
