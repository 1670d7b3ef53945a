"""A run whose machine died, with all that was on its disk, is trained to its end by the same command elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from agent_rft.cluster.records.checkpoint_store import CheckpointStore
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.events import CheckpointUploaded, JobResumed
from tests.e2e.command import AGENT_RFT, marked, processes, processes_left, run
from tests.support.supervised_job import supervised_job

STEPS = 40
DEADLINE_S = 300.0


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return supervised_job(tmp_path, STEPS, 1, f"file://{tmp_path / 'store'}")


@pytest.mark.nightly
def test_a_run_on_a_disk_that_was_lost_is_trained_to_its_end_by_the_same_command(job: Path) -> None:
    home = job.parent
    folder, store = home / "runs" / "imitated", CheckpointStore(f"file://{home / 'store'}")
    arguments = ("train", job, "--run-folder", folder, "--config", home / "agent-rft.yaml")
    with subprocess.Popen([AGENT_RFT, *map(str, arguments)], env=marked(os.environ)) as first:
        deadline = time.monotonic() + DEADLINE_S
        while not store.list_complete("imitated"):
            assert first.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        for process in processes():
            process.kill()
    assert processes_left() == []
    shutil.rmtree(folder)
    [*_, newest] = store.list_complete("imitated")
    step = int(newest.removeprefix("step-"))
    assert step < STEPS

    ended = run(*arguments, environment=os.environ)
    assert ended.returncode == 0, ended.stdout
    assert f"imitated resumes from {newest} in the checkpoint store" in ended.stdout
    again = RunFolder(folder)
    [resumed] = [event for event in again.events() if isinstance(event.event, JobResumed)]
    assert resumed.step == step
    assert [metrics["step"] for metrics in again.metrics()] == list(range(step, STEPS + 1))
    copied = [event for event in again.events() if isinstance(event.event, CheckpointUploaded)]
    assert copied[-1].step == STEPS
    assert store.list_complete("imitated")[-1] == f"step-{STEPS:06d}"
    assert processes_left() == []
