"""Throughput, latency and CPU time of listing jobs and events over HTTP, with 1,000 jobs and 100,000 events.

    python -m benchmarks.api [--database postgresql://...]

The server is `agent-rft serve`, with its cluster and Ray Serve. First pages and deep pages are measured in turn, with
`--clients` requests in flight. Target: p99 at most 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import insert

from agent_rft.serve.host.server_state import StateLocations
from agent_rft.serve.stores.database import Database
from agent_rft.serve.stores.job_tables import EventRow, JobRow
from agent_rft.serve.stores.key_store import KeyStore
from agent_rft.serve.stores.migration import open_database
from benchmarks.common import print_figure

CONFIG = "operator.yaml"
NUM_JOBS, NUM_EVENTS, BUSY_JOB_EVENTS = 1_000, 100_000, 50_000
WARM_UP_S = 0.5


def fill(database: Database) -> None:
    """Fill the tables. Half of the events belong to one job."""
    fixed: dict[str, Any] = {"status": "succeeded", "model": "gpt-5", "base": "gpt-5", "owner": "k", "seed": 1}
    fixed |= {"training_file": "file-1", "sealed_spec": "", "digest": "", "result_files": []}
    fixed |= {"attempt": 1, "failures": 0}
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": "auto"}}}
    jobs = [
        {"id": f"ftjob-{i}", "created_at": float(i), "status_changed_at": 0.0, "method": method} | fixed
        for i in range(NUM_JOBS)
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


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a server and yield its URL and its process."""
    options = ["--folder", str(folder), "--port", "0", "--config", str(folder / CONFIG)]
    command = [sys.executable, "-m", "agent_rft.cli.main", "serve", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield next(line.split()[2] for line in server.stdout if line.startswith("serving at")), server
        finally:
            server.terminate()


async def measure(base_url: str, token: str, clients: int, seconds: float, cpu_s: Callable[[], float]) -> None:
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
            await _load(client, path, clients, WARM_UP_S)
            before = cpu_s()
            times = await _load(client, path, clients, seconds)
            used = (cpu_s() - before) / len(times)
            times.sort()
            p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
            print_figure(f"api, {name}: p99", p99 * 1e3, "ms", p50=p50 * 1e3)
            print_figure(f"api, {name}: rate", len(times) / seconds, "requests/s", clients=clients)
            print_figure(f"api, {name}: server CPU per request", used * 1e3, "ms")
            print(
                f"{name:20} {len(times) / seconds:7.0f} requests/s, p50 {p50 * 1e3:5.1f} ms, p99 {p99 * 1e3:5.1f} ms, "
                f"server CPU {used * 1e3:4.1f} ms per request"
            )


async def _load(client: httpx.AsyncClient, path: Callable[[], str], clients: int, seconds: float) -> list[float]:
    end, times = time.perf_counter() + seconds, []

    async def worker() -> None:
        while (started := time.perf_counter()) < end:
            response = await client.get(path())
            assert response.status_code == 200, response.text
            times.append(time.perf_counter() - started)

    await asyncio.gather(*(worker() for _ in range(clients)))
    return times


def cpu_of(process: psutil.Process) -> float:
    """CPU time in seconds of the process and its descendants."""
    used = 0.0
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):
            times = each.cpu_times()
            used += times.user + times.system
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", help="URL of a database; default: SQLite in a new folder")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        StateLocations(folder, options.database).save()
        (folder / CONFIG).write_text("limits: {requests_per_minute: 10000000}\n")
        database = open_database(folder, options.database)
        fill(database)
        _, token = KeyStore(database).create("bench", ["read"])
        database.close()
        print(f"load before: {os.getloadavg()[0]:.2f}")
        with serving(folder) as (url, server):
            process = psutil.Process(server.pid)
            asyncio.run(measure(url, token, options.clients, options.seconds, lambda: cpu_of(process)))


if __name__ == "__main__":
    main()
