"""Two jobs that train adapters on one cluster at once, by the command line, with one engine; then it is killed."""

from __future__ import annotations

import json
import os
import subprocess
import time
from itertools import islice
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from agent_rft.actors.engine.shared.shared_engine import SharedEngine
from agent_rft.cluster.records.run_folder import RunFolder
from examples.ledger.services import services
from tests.e2e.command import AGENT_RFT, CONFIG, kill, marked
from tests.e2e.head import BIN, head
from tests.support.paths import LEDGER

STEPS = 3


def write_job(folder: Path, seed: int) -> Path:
    """A job of STEPS steps whose reservation is one core: its learner's."""
    job = yaml.safe_load((LEDGER / "job.yaml").read_text())
    with (LEDGER / job["training_file"]).open() as file:
        (folder / "train.jsonl").write_text("".join(islice(file, 4 * STEPS)))
    method = job["method"]["reinforcement"]
    method["algorithm"] |= {"lora": {"rank": 4 + seed}}
    method["hyperparameters"] = {"batch_size": 4, "n_epochs": 1}
    for name in ("validation_file", "test_file"):
        job.pop(name, None)
    job |= {"model": str(LEDGER / "base"), "training_file": "train.jsonl", "seed": seed}
    job["cluster"] = {"share_engines": True}
    path = folder / f"job-{seed}.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_two_jobs_train_on_one_engine_and_on_another_when_it_was_killed(tmp_path: Path) -> None:
    with services() as ledger:
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        environment = marked({**ledger, "PATH": path, "RAY_AUTH_MODE": "disabled"}) | {"AGENT_RFT_CONFIG": str(CONFIG)}
        with head(tmp_path / "head.log", environment, cores=3) as cluster:
            jobs = []
            for seed in (1, 2):
                command = [AGENT_RFT, "train", write_job(tmp_path, seed), "--runs", tmp_path / f"runs-{seed}"]
                with (tmp_path / f"log-{seed}").open("w") as log:
                    jobs.append(
                        subprocess.Popen(
                            [*command, "--address", cluster.address], env=environment, stdout=log, stderr=log
                        )
                    )
            logs = [tmp_path / f"log-{seed}" for seed in (1, 2)]
            while not all(f"step 1/{STEPS}" in log.read_text() for log in logs):
                assert all(job.poll() is None for job in jobs), [log.read_text() for log in logs]
                time.sleep(0.2)
            kill("VLLM::EngineCore")
            ended = [job.wait() for job in jobs]
            assert ended == [0, 0], [log.read_text() for log in logs]
            with urlopen(f"{cluster.dashboard}/api/v0/actors?detail=1&limit=1000", timeout=30) as answer:
                actors = json.load(answer)["data"]["result"]["result"]
    assert [actor["class_name"] for actor in actors].count(SharedEngine.__name__) == 2
    for seed in (1, 2):
        (run,) = (tmp_path / f"runs-{seed}").iterdir()
        assert len(RunFolder(run).metrics()) == STEPS
