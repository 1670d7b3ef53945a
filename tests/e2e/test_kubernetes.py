"""The entry points of the Kubernetes manifests, run as local processes as Kubernetes would run them.

The processes are not root, have a read-only root file system, and the volumes, environment and commands of the
manifests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.fernet import Fernet

from cluster.records.run_folder import RunFolder
from cluster.run.signals import STOPPED
from tests.contracts.manifests import one
from tests.support.paths import LEDGER
from trainer.events import JobEnded, JobResumed

STEPS, BATCH = 6, 4
TIMEOUT_S = 900
"""Far more than a scenario takes on two free cores."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The contents of the cluster's volume, ConfigMap and Secrets, with a shortened job."""
    for name in ("state", "config"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    secrets = {
        "agent-rft": {"LEDGER_TOKEN": "secret"},
        "agent-rft-server": {"AGENT_RFT_SECRET_KEY": Fernet.generate_key().decode()},
    }
    (tmp_path / "secrets.json").write_text(json.dumps(secrets))
    files = one("laptop", "ConfigMap")["data"]
    job = yaml.safe_load(files["job.yaml"])
    with (LEDGER / "data" / "train.jsonl").open() as file:
        (tmp_path / "state" / "train.jsonl").write_text("".join(islice(file, STEPS * BATCH)))
    job["training_file"] = "/var/lib/agent-rft/train.jsonl"
    del job["validation_file"], job["test_file"]
    job["method"]["reinforcement"]["hyperparameters"] |= {"batch_size": BATCH, "eval_interval": 1}  # and a checkpoint
    for name, text in (files | {"job.yaml": yaml.safe_dump(job)}).items():
        (tmp_path / "config" / name).write_text(text)
    return tmp_path


def in_namespaces(scenario: str, folder: Path) -> dict[str, Any]:
    """Runs a scenario of tests.e2e.pods and returns its result; all processes that it starts end with it."""
    root = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *root, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    ended = subprocess.run(
        [*command, sys.executable, "-m", "tests.e2e.pods", scenario, str(folder)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    logs = "".join(f"\n--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(folder.glob("logs/*")))
    assert ended.returncode == 0, ended.stderr + logs
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.nightly
@pytest.mark.timeout(TIMEOUT_S + 30)
def test_a_job_whose_cluster_is_lost_or_drained_goes_on_and_an_invalid_one_is_not_retried(folder: Path) -> None:
    found = in_namespaces("rayjob", folder)
    invalid, second, third = found["invalid"], found["second"], found["third"]
    assert (invalid["status"], invalid["driver_exit_code"]) == ("STOPPED", 2), invalid
    assert "the job was refused" in invalid["message"]
    assert found["hooks"] == [0, 0]
    assert (second["status"], second["driver_exit_code"]) == ("FAILED", STOPPED), second  # retried
    assert third["status"] == "SUCCEEDED", third
    run = RunFolder(folder / "state" / "runs" / "job")
    assert [metrics["step"] for metrics in run.metrics()] == list(range(1, STEPS + 1))
    events = [event.event for event in run.events()]
    lost, drained = [event.step for event in events if isinstance(event, JobResumed)]
    assert 0 < lost < drained
    (ended, done) = [event.outcome for event in events if isinstance(event, JobEnded)]
    assert (ended, done) == ("stopped", "done")
    model = run.checkpoints / f"step-{STEPS:06d}"
    assert (model / "config.json").exists()
    assert model.stat().st_uid != 0 or os.getuid() != 0


@pytest.mark.timeout(TIMEOUT_S + 30)
def test_the_api_requires_a_key(folder: Path) -> None:
    found = in_namespaces("rayservice", folder)
    assert found["health"] == 200
    assert found["keys create"] == 0
    assert found["without a key"] == 401
    code, text = found["models"]
    assert code == 200, text
    assert json.loads(text)["object"] == "list"
