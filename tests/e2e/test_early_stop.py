"""A job that stops early, on real engines: its test file is graded with its best checkpoint, not with its last."""

from __future__ import annotations

import json
import subprocess
from itertools import islice
from pathlib import Path

import pytest
import yaml

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.events import EarlyStopped
from agent_rft.trainer.loop.checkpoint import best_checkpoint, latest_checkpoint
from examples.ledger.services import services
from tests.e2e.command import AGENT_RFT, marked
from tests.support.paths import LEDGER


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_best_checkpoint_is_graded_and_a_resumed_run_ends_at_once(tmp_path: Path) -> None:
    """With a learning rate of nearly 0 all validations are equal, and the first of them is the best."""
    job = yaml.safe_load((LEDGER / "job.yaml").read_text())
    for name, rows in (("training_file", 8), ("validation_file", 2), ("test_file", 2)):
        with (LEDGER / job[name]).open() as file:
            (tmp_path / f"{name}.jsonl").write_text("".join(islice(file, rows)))
        job[name] = f"{name}.jsonl"
    method = job["method"]["reinforcement"]
    method["hyperparameters"] = {"batch_size": 2, "n_epochs": 2, "eval_interval": 1}
    method["algorithm"] = {"learning_rate": 1e-12}
    method["early_stop"] = {"patience": 2, "min_gain": 0.5}
    path, run = tmp_path / "job.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump(job | {"model": str(LEDGER / "base"), "seed": 1}))
    with services() as ledger:
        command = [AGENT_RFT, "train", str(path), "--run-folder", str(run)]
        for _ in range(2):
            ended = subprocess.run(command, env=marked(ledger), capture_output=True, text=True, timeout=300)
            assert ended.returncode == 0, ended.stdout + ended.stderr
    folder = RunFolder(run)
    stops = [event.event for event in folder.events() if isinstance(event.event, EarlyStopped)]
    assert stops and stops == [stops[0]] * 2
    best, latest = best_checkpoint(folder.checkpoints), latest_checkpoint(folder.checkpoints)
    assert best is not None and latest is not None
    assert (best[1].step, latest[1].step) == (stops[0].best_step, 2)
    assert best[1].step == 1
    assert folder.evaluations()["test-after"].num_rollouts == 2
    last = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()][-1]
    assert last["data"]["outcome"] == "done"
