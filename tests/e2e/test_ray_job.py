"""A Ray job on a cluster that runs already: `ray job submit --working-dir . -- agent-rft eval JOB.yaml`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import yaml

from cluster.run_folder import RunFolder
from examples.ledger.services import services

LEDGER = Path(__file__).parents[2] / "examples" / "ledger"
BIN = Path(sys.executable).parent
NEEDED = ("LEDGER_TOOLS_URL", "LEDGER_GRADER_URL", "LEDGER_TOKEN")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    with services() as environment:
        path = f"{BIN}{os.pathsep}{environment['PATH']}"
        yield environment | {"PATH": path, "RAY_AUTH_MODE": "disabled"}


@pytest.fixture
def dashboard(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """The address of a cluster's job server; the cluster ends with the test."""
    port = free_port()
    command = [BIN / "ray", "start", "--head", "--block", "--num-cpus=2", f"--port={free_port()}"]
    command += [f"--dashboard-port={port}", f"--temp-dir={Path('/tmp') / f'rft-{os.getpid()}'}"]
    with (tmp_path / "head.log").open("wb") as log:
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert head.poll() is None and time.monotonic() < deadline, (tmp_path / "head.log").read_text()
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        head.terminate()
        head.wait(30)
        shutil.rmtree(f"/tmp/rft-{os.getpid()}", ignore_errors=True)


def test_a_job_is_submitted_to_a_running_cluster(dashboard: str, environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "job"
    shutil.copytree(LEDGER / "base", folder / "base")
    shutil.copy(LEDGER / "agent-rft.yaml", folder)  # found in the working directory
    job = yaml.safe_load((LEDGER / "job.yaml").read_text())
    for name in ("training_file", "test_file"):
        with (LEDGER / job[name]).open() as file:
            (folder / f"{name}.jsonl").write_text("".join(islice(file, 16)))
        job[name] = f"{name}.jsonl"
    del job["validation_file"]
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    variables = json.dumps({"env_vars": {name: environment[name] for name in NEEDED}})
    entrypoint = ["agent-rft", "eval", "job.yaml", "--runs", str(tmp_path / "runs")]
    options = ["--address", dashboard, "--working-dir", folder, "--runtime-env-json", variables]
    submitted = subprocess.run(
        [BIN / "ray", "job", "submit", *options, "--", *entrypoint],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert RunFolder(run).evaluations()["eval-test"].num_rollouts == 16
