"""The shop's example: its jobs on a tiny model with its template, and all of it on the real model."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_rft.cluster.records.run_folder import RunFolder
from examples.common.way import listening
from examples.orders.server import app
from tests.e2e.command import processes_left, run
from tests.support.paths import ROOT
from tests.support.tiny_model import write_tiny_model

ORDERS = ROOT / "examples" / "orders"
CONTEXT = 2048
"""Tokens: those of the tiny model are bytes."""


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with listening(app) as url:
        yield {**os.environ, "ORDERS_URL": url, "ORDERS_SEED": "3"}


def write_job(folder: Path, name: str, num_rows: int, **settings: Any) -> Path:
    """One of the example's jobs with one step of so many rows, and `settings` of its method."""
    job = yaml.safe_load((ORDERS / f"{name}.yaml").read_text())
    with (ORDERS / job["training_file"]).open() as file:
        (folder / f"{name}.jsonl").write_text("".join(islice(file, num_rows)))
    job["training_file"] = f"{name}.jsonl"
    job.pop("test_file", None)
    job["model_options"]["chat_template"] = str(ORDERS / job["model_options"]["chat_template"])
    method = job["method"][job["method"]["type"]]
    method["hyperparameters"] |= {"batch_size": num_rows, "n_epochs": 1}
    method |= settings
    job["cluster"] |= {"context_length": CONTEXT, "engine_cores": 1, "rank_cores": 1}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


@pytest.mark.nightly
def test_a_supervised_and_a_reinforcement_step_train_a_model_by_the_examples_template(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    model = write_tiny_model(tmp_path / "model", CONTEXT)

    warm_start = write_job(tmp_path, "warm_start", 8)
    done = run(
        "train", warm_start, "--run-folder", tmp_path / "warm", environment=environment | {"ORDERS_MODEL": str(model)}
    )
    assert done.returncode == 0, done.stdout
    (metrics,) = RunFolder(tmp_path / "warm").metrics()
    assert metrics["trained_tokens"] > 8 * 50

    # A model that knows nothing answers nothing rightly, so here another grade tells its rollouts apart.
    (start,) = (tmp_path / "warm" / "checkpoints").iterdir()
    says_e = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "e", "operation": "like"}
    job = write_job(tmp_path, "job", 4, grader=says_e)
    settings = yaml.safe_load(job.read_text())
    settings["method"]["reinforcement"]["hyperparameters"]["compute_multiplier"] = 0.25  # two rollouts
    job.write_text(yaml.safe_dump(settings))
    done = run("train", job, "--run-folder", tmp_path / "run", environment=environment | {"ORDERS_MODEL": str(start)})
    assert done.returncode == 0, done.stdout
    assert processes_left() == []
    kept = RunFolder(tmp_path / "run")
    (metrics,) = kept.metrics()
    assert metrics["rollouts_graded"] >= 8
    assert metrics["grad_norm"] > 0
    assert metrics["canary_gap"] < 1e-3
    prompts = {group.request.task.item["messages"][1]["content"] for group in kept.read_groups("step-000001")}
    assert prompts == {
        json.loads(line)["messages"][1]["content"] for line in (tmp_path / "job.jsonl").read_text().splitlines()
    }


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_real_model_learns_to_answer_customers(seed: int) -> None:
    done = subprocess.run(["make", "real-model", f"SEED={seed}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((ROOT / "build" / "orders" / f"seed-{seed}" / "summary.json").read_text())
    untrained, warm, tuned = summary["stages"]
    assert untrained["grade"] < 0.1
    assert 0.3 < warm["grade"] < 0.95
    assert tuned["grade"] > max(0.95, warm["grade"] + 0.1)
    assert tuned["tool_calls"] < warm["tool_calls"]
    assert tuned["completion_tokens"] < 1.1 * warm["completion_tokens"]  # an answer to all parts may be longer
    assert processes_left() == []
