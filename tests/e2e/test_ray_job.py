"""Ray jobs on a cluster that runs already: `ray job submit --working-dir . -- agent-rft train JOB.yaml`."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from cluster.run_folder import RunFolder
from examples.ledger.services import services
from tests.e2e.command import MARK, processes_left
from trainer.checkpoint import Checkpoints

LEDGER = Path(__file__).parents[2] / "examples" / "ledger"
BIN = Path(sys.executable).parent
NEEDED = ("LEDGER_TOOLS_URL", "LEDGER_GRADER_URL", "LEDGER_TOKEN")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with services() as environment:
        path = f"{BIN}{os.pathsep}{environment['PATH']}"
        yield environment | {"PATH": path, "RAY_AUTH_MODE": "disabled"}


@pytest.fixture(scope="module")
def dashboard(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster's job server; the cluster ends with the tests."""
    tmp_path = tmp_path_factory.mktemp("head")
    port = free_port()
    command = [BIN / "ray", "start", "--head", "--block", "--num-cpus=2", f"--port={free_port()}"]
    # Its agent takes the jobs: on Ray's usual port another cluster of this machine might answer.
    command += [
        f"--dashboard-port={port}",
        f"--dashboard-agent-listen-port={free_port()}",
        f"--temp-dir={Path('/tmp') / f'rft-{os.getpid()}'}",
    ]
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


class Job:
    """A folder that is submitted, with the first rows of the example's files."""

    def __init__(self, folder: Path, dashboard: str, environment: dict[str, str]) -> None:
        self.folder, self.runs = folder / "job", folder / "runs"
        self._options = ["--address", dashboard]
        self._environment = environment
        self._dashboard = dashboard
        shutil.copytree(LEDGER / "base", self.folder / "base")
        shutil.copy(LEDGER / "agent-rft.yaml", self.folder)  # found in the working directory

    def write(self, name: str, rows: int, change: Callable[[dict[str, Any]], None]) -> None:
        job = yaml.safe_load((LEDGER / "job.yaml").read_text())
        del job["validation_file"]
        for file in ("training_file", "test_file"):
            with (LEDGER / job[file]).open() as lines:
                (self.folder / f"{name}-{file}.jsonl").write_text("".join(islice(lines, rows)))
            job[file] = f"{name}-{file}.jsonl"
        change(job)
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(job))

    def submit(self, *command: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        variables = {name: self._environment[name] for name in NEEDED}
        variables |= {"RAY_JOB_STOP_WAIT_TIME_S": "60", MARK: str(os.getpid())}
        options += ("--working-dir", str(self.folder), "--runtime-env-json", json.dumps({"env_vars": variables}))
        return self.ray("submit", *options, "--", "agent-rft", *command)

    def ray(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`ray job VERB ...`"""
        return subprocess.run(
            [BIN / "ray", "job", verb, *self._options, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=500,
        )

    def get(self, path: str) -> Any:
        """From the dashboard's REST API."""
        with urlopen(f"{self._dashboard}/api/{path}", timeout=30) as answer:
            return json.load(answer)

    def actors(self) -> dict[str, str]:
        """State by name, of actors that have one."""
        found = self.get("v0/actors?detail=1&limit=1000")["data"]["result"]["result"]
        return {actor["name"]: actor["state"] for actor in found if actor["name"]}

    def until_says(self, submission: str, words: str) -> str:
        """The job's status message, once it holds `words`."""
        deadline = time.monotonic() + 240
        while True:
            info = self.get(f"jobs/{submission}")
            if words in info["message"]:
                return str(info["message"])
            assert info["status"] in ("PENDING", "RUNNING"), info
            assert time.monotonic() < deadline, info
            time.sleep(0.2)


@pytest.fixture
def job(tmp_path: Path, dashboard: str, environment: dict[str, str]) -> Job:
    return Job(tmp_path, dashboard, environment)


@pytest.mark.timeout(600)
def test_two_jobs_share_a_cluster_and_one_is_seen_and_stopped_by_rays_own_means(job: Job) -> None:
    def by_turns(raw: dict[str, Any]) -> None:
        del raw["test_file"]
        raw["cluster"] = {"colocated": True}
        raw["method"]["reinforcement"]["hyperparameters"] = {"batch_size": 4, "n_epochs": 4}
        raw["method"]["reinforcement"]["algorithm"]["max_staleness"] = 0

    job.write("tune", 200, by_turns)
    job.write("graded", 16, lambda raw: None)
    submitted = job.submit(
        *("train", "tune.yaml", "--runs", str(job.runs / "tuned")), options=("--no-wait", "--submission-id", "tune-1")
    )
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr

    graded = job.submit("eval", "graded.yaml", "--runs", str(job.runs / "graded"))
    assert graded.returncode == 0, graded.stdout + graded.stderr
    (run,) = (job.runs / "graded").iterdir()
    assert RunFolder(run).evaluations()["eval-test"].num_rollouts == 16

    message = job.until_says("tune-1", "step ")
    (run,) = (job.runs / "tuned").iterdir()
    assert re.fullmatch(rf"{run.name}: step \d+ of 200, reward -?\d\.\d+", message)
    actors = job.actors()
    names = ("engine-0", "learner-rank-0", "dispatcher-0", "grader-pool")
    assert [actors[f"{run.name}:{name}"] for name in names] == ["ALIVE"] * 4
    assert "step 1/200" in job.ray("logs", "tune-1").stdout

    stopped = job.ray("stop", "tune-1")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert job.get("jobs/tune-1")["status"] == "STOPPED"
    kept = RunFolder(run)
    latest = Checkpoints(kept.checkpoints).latest()
    assert latest is not None
    assert latest[1].step == len(kept.metrics()) >= 1
    assert all(metrics["staleness_max"] == 0 for metrics in kept.metrics())
    assert processes_left() == []
    assert "ALIVE" not in [state for name, state in job.actors().items() if name.startswith(run.name)]


def test_a_job_that_is_wrong_ends_with_the_commands_exit_code_and_its_words(job: Job) -> None:
    failed = job.submit("train", "nowhere.yaml", options=("--submission-id", "wrong-1"))
    assert failed.returncode == 1  # Ray's own
    info = job.get("jobs/wrong-1")
    assert (info["status"], info["driver_exit_code"]) == ("FAILED", 2)
    assert "nowhere.yaml" in job.ray("logs", "wrong-1").stdout
