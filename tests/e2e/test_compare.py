"""`agent-rft compare` of two models, on a real engine: each is evaluated once."""

from __future__ import annotations

import json
import shutil
import subprocess
from itertools import islice
from pathlib import Path

import pytest
import yaml

from examples.ledger.services import services
from tests.e2e.command import AGENT_RFT, marked
from tests.support.paths import LEDGER


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_models_are_evaluated_once_and_equal_ones_do_not_differ(tmp_path: Path) -> None:
    job = yaml.safe_load((LEDGER / "job.yaml").read_text())
    for name in ("training_file", "test_file"):
        with (LEDGER / job[name]).open() as file:
            (tmp_path / f"{name}.jsonl").write_text("".join(islice(file, 2)))
        job[name] = f"{name}.jsonl"
    job.pop("validation_file", None)
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job | {"model": str(LEDGER / "base"), "seed": 1}))
    shutil.copytree(LEDGER / "base", tmp_path / "copy")
    with services() as ledger:
        models = (str(LEDGER / "base"), str(tmp_path / "copy"))
        command = [AGENT_RFT, "compare", *models, "--job", str(path), "--runs", str(tmp_path / "runs"), "--json"]
        compared = subprocess.run(command, env=marked(ledger), capture_output=True, text=True)
    assert compared.returncode == 0, compared.stderr
    found = json.loads(compared.stdout)
    assert len(found["rows"]) == 2 and found["changes"][0]["measures"]["reward"]["verdict"] == "unclear"
    assert compared.stderr.count("reusing the evaluation in") == 1, "the copy has the same contents"
