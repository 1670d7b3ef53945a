"""The real `train`, `eval`, `ready` and `serve`, with Ray and an engine, stop at a signal, also if nobody reads them.

tests/integration/cluster/run/test_stopped_runs.py has all combinations, without Ray.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
import yaml

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.run.stop_signals import STOP_REQUEST
from agent_rft.events import JobEnded
from agent_rft.trainer.loop.checkpoint import Checkpoints
from examples.ledger.services import services
from tests.e2e.command import AGENT_RFT, marked, processes_left
from tests.support.paths import LEDGER

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]
DEADLINE_S = 180.0
COMMANDS = ("train", "eval", "ready", "serve")
WAYS = (("unread", "SIGINT"), ("closed", "SIGTERM"), ("terminal", "SIGHUP"))
"""Standard output and error, and the signal. `unread` is a pipe whose reader has ended; `terminal` is one that is
closed, as a lost SSH connection does: the kernel sends the signal."""


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with services() as environment:
        yield marked(environment)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    raw = yaml.safe_load((LEDGER / "job.yaml").read_text()) | {"model": str(LEDGER / "base"), "validation_file": None}
    raw |= {"training_file": str(LEDGER / "data" / "train.jsonl"), "test_file": None}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(raw))
    return tmp_path / "job.yaml"


class Started:
    """A command as a process with its own session, and the work that it has done."""

    def __init__(self, command: str, output: str, job: Path, environment: dict[str, str]) -> None:
        self._command, self._runs = command, job.parent / "runs"
        arguments = {
            "train": [job, "--runs", self._runs],
            "eval": [job, "--runs", self._runs, "--file", "training_file", "--samples", "8"],
            "ready": [job, "--runs", self._runs],
            "serve": ["--folder", job.parent / "state", "--port", "0"],
        }[command]
        self._reader, written = os.openpty() if output == "terminal" else os.pipe()
        hangup = signal.SIG_DFL if output == "terminal" else signal.SIG_IGN  # the others are started by nohup

        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGHUP, hangup)
            if output == "terminal":
                fcntl.ioctl(1, termios.TIOCSCTTY, 0)
            elif output == "closed":
                os.closerange(1, 3)

        self._process = subprocess.Popen(
            [AGENT_RFT, command, *map(str, arguments)],
            cwd=job.parent,
            env=environment | {"AGENT_RFT_METRICS_PORT": "0"},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            start_new_session=True,
            preexec_fn=prepare,
        )
        os.close(written)
        os.set_blocking(self._reader, False)
        if output != "terminal":
            self.close_output()

    def close_output(self) -> None:
        os.close(self._reader)
        self._reader = -1

    @property
    def run(self) -> RunFolder:
        (events,) = self._runs.glob("*/events.jsonl")
        return RunFolder(events.parent)

    def work(self) -> int:
        """How much is done: steps, calls of endpoints, or whether the server waits for a signal."""
        if self._command == "serve":
            status = Path(f"/proc/{self._process.pid}/status").read_text()
            (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
            return int(caught, 16) >> (STOP_REQUEST - 1) & 1
        if not list(self._runs.glob("*/events.jsonl")):
            return 0
        if self._command == "train":
            return len(self.run.metrics())
        with suppress(FileNotFoundError):
            return sum(endpoint["calls"] for endpoint in json.loads(self.run.status_file.read_text())["endpoints"])
        return 0

    def wait_for_work(self, than: int) -> int:
        """Wait until more is done than before, and return how much."""
        self._until(lambda: self.work() > than)
        return self.work()

    def send(self, name: str) -> None:
        self._process.send_signal(signal.Signals[name])

    def end(self) -> int:
        """Wait for the end, and return the exit code."""
        return self._process.wait(DEADLINE_S)

    def _until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert self._process.poll() is None and time.monotonic() < deadline
            with suppress(OSError):  # nothing is to be read
                while self._reader >= 0 and os.read(self._reader, 1 << 16):
                    pass
            time.sleep(0.2)


@pytest.mark.parametrize(("command", "way"), list(product(COMMANDS, WAYS)))
def test_a_signal_stops_a_command_whose_output_nobody_reads_and_nohup_keeps_it_from_a_hangup(
    command: str, way: tuple[str, str], job: Path, environment: dict[str, str]
) -> None:
    output, number = way
    started = Started(command, output, job, environment)
    done = started.wait_for_work(0)
    if output == "terminal":
        started.close_output()
    else:
        if command != "serve":
            started.send("SIGHUP")
            started.wait_for_work(done)
        started.send(number)
    assert started.end() == (0 if command == "serve" else 130)
    assert processes_left() == []
    if command == "serve":
        return
    run = started.run
    assert [event.event.outcome for event in run.events() if isinstance(event.event, JobEnded)] == ["stopped"]
    assert run.report_file.exists()
    if command == "train":
        saved = [state.step for _, state in Checkpoints(run.checkpoints).list_all()]
        assert max(saved) == len(run.metrics()) < run.job()["plan"]["steps"]
