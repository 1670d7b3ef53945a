"""The way of a newcomer: from Python functions to the first step of training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_rft.cluster.records.run_folder import RunFolder
from tests.e2e.command import MARK, processes_left
from tests.support.paths import ROOT

STEPS = ("write the project", "test the grader", "check the job", "train, to the end of the first step", "in all")


@pytest.mark.nightly
def test_functions_and_questions_become_a_job_that_trains(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), MARK: str(os.getpid())}
    done = subprocess.run(
        [sys.executable, "-m", "examples.fifteen_minutes", str(tmp_path / "new")],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "the job is ready to train" in done.stdout
    *_, table = done.stdout.split("\n\n")
    assert [line[:44].strip() for line in table.splitlines()] == list(STEPS)
    first, *_ = RunFolder(tmp_path / "new" / "project" / "run").metrics()
    assert first["step"] == 1
    assert processes_left() == []
