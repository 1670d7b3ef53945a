"""Jobs of the chaos tests, and `agent-rft train` as a process that a test stops, suspends or reads."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.e2e.command import AGENT_RFT
from tests.support.paths import LEDGER


def ledger_job(folder: Path, steps: int, batch: int, **algorithm: Any) -> Path:
    """Write the ledger example's job with `steps` batches of `batch` rows; `algorithm` replaces its settings."""
    job = yaml.safe_load((LEDGER / "job.yaml").read_text())
    job = {key: job[key] for key in ("training_file", "seed", "method")} | {"model": str(LEDGER / "base")}
    with (LEDGER / job["training_file"]).open() as file:
        (folder / "train.jsonl").write_text("".join(islice(file, steps * batch)))
    job |= {"training_file": "train.jsonl", "cluster": {"checkpoint_interval": {"steps": 2}}}
    reinforcement = job["method"]["reinforcement"]
    reinforcement["hyperparameters"] = {"batch_size": batch, "n_epochs": 1, "eval_interval": steps}
    reinforcement["algorithm"] |= algorithm
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder / "job.yaml"


@contextmanager
def training(job: Path, run: Path, environment: dict[str, str], *options: str) -> Iterator[subprocess.Popen[str]]:
    """Context manager of a process that trains a job in a run folder; it is killed at the end."""
    command = [AGENT_RFT, "train", str(job), "--run-folder", str(run), *options]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Return what the process prints up to a line with the text.

    Raises:
        AssertionError: The process ended before; the message is its output.
    """
    assert process.stdout is not None
    read = []
    for line in process.stdout:
        read.append(line)
        if text in line:
            return "".join(read)
    raise AssertionError("".join(read))


def read_to_end(process: subprocess.Popen[str], timeout_s: float) -> tuple[int, str]:
    """Return the exit code of the process, and what it prints until then."""
    assert process.stdout is not None
    output = process.stdout.read()
    return process.wait(timeout_s), output


def process_tree(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the process and its descendants."""
    return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
