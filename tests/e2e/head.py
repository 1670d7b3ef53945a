"""A Ray cluster of its own, as an operator starts one: `ray start --head`."""

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

from cluster.ray_cluster.session import free_ports

BIN = Path(sys.executable).parent
START_S, STOP_S = 240.0, 60.0


@dataclass(frozen=True)
class Head:
    """`address` is for drivers, `dashboard` the URL of the job server."""

    address: str
    dashboard: str


@contextmanager
def head(log: Path, environment: Mapping[str, str], cores: int) -> Iterator[Head]:
    """A Ray head that runs until the context exits and writes its output to `log`."""
    # On Ray's default ports another cluster of this machine might answer, and in Ray's default folder other tests would
    # find this cluster's address.
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
        except subprocess.TimeoutExpired:  # it had not come up yet
            os.killpg(running.pid, signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)
