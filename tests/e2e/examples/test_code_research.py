"""The example of code research, nightly: real steps of its small job, with its tools and a comparison."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agent_rft.cluster.records.run_folder import RunFolder
from examples.code_research.server import app
from examples.common.way import listening
from tests.e2e.command import processes_left, run
from tests.support.example_jobs import CONTEXT, write_step_job
from tests.support.paths import ROOT
from tests.support.tiny_model import write_tiny_model

EXAMPLE = ROOT / "examples" / "code_research"


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_small_job_takes_a_real_step_and_its_records_have_the_distribution_of_calls(tmp_path: Path) -> None:
    job = write_step_job(EXAMPLE, tmp_path, test_file="step.jsonl")
    model = write_tiny_model(tmp_path / "model", CONTEXT)

    with listening(app) as url:
        environment = {**os.environ, "RESEARCH_URL": url, "RESEARCH_MODEL": str(model)}
        done = run("train", job, "--run-folder", tmp_path / "run", environment=environment)
    assert done.returncode == 0, done.stdout
    first, *_ = RunFolder(tmp_path / "run").metrics()
    assert first["grad_norm"] > 0
    assert first["held_out_grade_mean"] == 0
    sides = [f"{tmp_path / 'run'}:test-{when}" for when in ("before", "after")]
    done = run("compare", *sides, "--html", tmp_path / "calls.html", environment=os.environ)
    assert done.returncode == 0, done.stdout
    assert "Calls per rollout" in (tmp_path / "calls.html").read_text()
    asked = {json.loads(line)["module"] for line in (tmp_path / "step.jsonl").read_text().splitlines()}
    assert {
        group.request.task.item["module"] for group in RunFolder(tmp_path / "run").read_groups("test-after")
    } == asked
    assert processes_left() == []
