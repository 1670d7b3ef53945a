"""A separate Ray cluster, started as an operator does: `ray start --head`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent_rft.cluster.ray_cluster.ray_session import free_ports

BIN = Path(sys.executable).parent
START_S, STOP_S = 240.0, 60.0


@dataclass(frozen=True)
class Head:
    """The head of a cluster: `address` for drivers, `dashboard` is the URL of the job server."""

    address: str
    dashboard: str


@contextmanager
def head(log: Path, environment: Mapping[str, str], cores: int) -> Iterator[Head]:
    """Runs a head until the context ends; its output goes to `log`."""
    # Not Ray's default ports, where another cluster of this machine may listen, nor its default folder, which other
    # clusters on this machine share.
    port, dashboard, agent, metrics, client = free_ports(5)
    home = Path(f"/tmp/rft-head-{os.getpid()}")
    command = [BIN / "ray", "start", "--head", "--block", f"--num-cpus={cores}", f"--port={port}"]
    command += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"]
    command += [f"--dashboard-agent-listen-port={agent}", f"--metrics-export-port={metrics}"]
    command += [f"--ray-client-server-port={client}", f"--temp-dir={home}"]
    with log.open("wb") as file:
        running = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        deadline = time.monotonic() + START_S
        while "Ray runtime started" not in log.read_text():
            assert running.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield Head(f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}")
    finally:
        running.terminate()
        try:
            running.wait(STOP_S)
        except subprocess.TimeoutExpired:  # it was still starting
            os.killpg(running.pid, signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)
