"""The example of edit planning, nightly: one real step of its small job, whose rollouts each have a machine."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_rft.cluster.records.run_folder import RunFolder
from examples.common.way import listening
from examples.edit_planning.machines import Machines
from examples.edit_planning.repositories import Repositories
from examples.edit_planning.server import make_app
from tests.e2e.command import processes_left, run
from tests.support.paths import ROOT
from tests.support.tiny_model import write_tiny_model

EXAMPLE = ROOT / "examples" / "edit_planning"
CONTEXT = 2_048
"""Tokens: those of the tiny model are bytes."""
NUM_ROWS = 2


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_small_job_takes_a_real_step_and_closes_every_machine(tmp_path: Path) -> None:
    for name in ("few", "validation", "test"):
        with (EXAMPLE / "data" / f"{name}.jsonl").open() as file:
            (tmp_path / f"{name}.jsonl").write_text("".join(islice(file, NUM_ROWS)))
    job: dict[str, Any] = yaml.safe_load((EXAMPLE / "job_small.yaml").read_text())
    files = {"training_file": "few.jsonl", "validation_file": "validation.jsonl", "test_file": "test.jsonl"}
    job |= files | {"model_options": {"chat_template": str(ROOT / "examples/common/chat_template.jinja")}}
    job["cluster"] |= {"context_length": CONTEXT, "engine_cores": 1, "rank_cores": 1}
    # A random model plans nothing rightly: another grade tells its rollouts apart.
    method = job["method"]["reinforcement"]
    says_e = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "e", "operation": "like"}
    method |= {"grader": says_e}
    method["hyperparameters"] |= {"batch_size": NUM_ROWS, "n_epochs": 1}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    model = write_tiny_model(tmp_path / "model", CONTEXT)

    machines = Machines(Repositories(tmp_path / "repositories"), tmp_path / "machines")
    with listening(make_app(machines)) as url:
        settings = {"EDIT_PLANNING_URL": url, "EDIT_PLANNING_MODEL": str(model), "EDIT_PLANNING_SEED": "1"}
        done = run("train", tmp_path / "job.yaml", "--run-folder", tmp_path / "run", environment=os.environ | settings)
        counts = machines.counts()
    assert done.returncode == 0, done.stdout
    (metrics,) = RunFolder(tmp_path / "run").metrics()
    assert metrics["grad_norm"] > 0
    assert metrics["held_out_grade_mean"] == 0
    assert counts["opened"] == counts["closed"] >= metrics["rollouts_graded"] + 4 * NUM_ROWS
    assert counts["open"] == 0 and counts["most_open"] <= 16
    assert processes_left() == []
