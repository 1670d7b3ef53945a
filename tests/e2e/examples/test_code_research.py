"""The example of code research, nightly: one real step of its small job, with its tools and a comparison."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.records.run_folder import RunFolder
from examples.code_research.server import app
from examples.common.way import listening
from tests.e2e.command import processes_left, run
from tests.support.paths import ROOT
from tests.support.tiny_model import write_tiny_model

EXAMPLE = ROOT / "examples" / "code_research"
CONTEXT = 2_048
"""Tokens: those of the tiny model are bytes."""


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_small_job_takes_a_real_step_and_its_records_have_the_distribution_of_calls(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text((ROOT / "examples/common/chat_template.jinja").read_text())
    (tmp_path / "step.jsonl").write_text((EXAMPLE / "data" / "step.jsonl").read_text())
    job: dict[str, Any] = yaml.safe_load((EXAMPLE / "job_small.yaml").read_text())
    job |= {"training_file": "step.jsonl", "test_file": "step.jsonl"}
    job["model_options"]["chat_template"] = "chat_template.jinja"
    job["cluster"] |= {"context_length": CONTEXT, "engine_cores": 1, "rank_cores": 1}
    # A random model states no facts: another grade tells its rollouts apart, and the example's is the held-out one.
    method = job["method"]["reinforcement"]
    method["held_out_grader"] = method["grader"]
    says_e = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "e", "operation": "like"}
    method["grader"] = says_e
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    model = write_tiny_model(tmp_path / "model", CONTEXT)

    with listening(app) as url:
        environment = {**os.environ, "RESEARCH_URL": url, "RESEARCH_MODEL": str(model)}
        done = run("train", tmp_path / "job.yaml", "--run-folder", tmp_path / "run", environment=environment)
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
