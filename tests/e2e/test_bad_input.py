"""What a user sees of mistakes and of killed engines: a clear message or event, an exit code, nothing left behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.events import EngineReplaced
from examples.ledger.services import services
from tests.e2e.command import AGENT_RFT, CONFIG, kill, marked, processes_left, run
from tests.support.paths import LEDGER, ROOT
from tests.support.shared_memory import left_behind, unheld

SECONDS = 60
"""A mistake must be reported within this time, on a loaded machine."""
MANY_MISTAKES = """\
model: /no/such/model
training_file: rows.jsonl
method:
  type: reinforcement
  reinforcement:
    tools: [{name: cat, server_url: "http://127.0.0.1:1/cat", headers: {Authorization: "Bearer ${LEDGER_TOKEN}"}}]
    grader: {type: string_check, input: "{{ sample.output_text }}", reference: "{{ item.right }}", operation: eq}
    algorithm: {top_p: 0.9}
    api_key: ${LEDGER_TOKEN}
cluster: {context_length: 0}
"""


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with services() as environment:
        yield environment


def write_job(folder: Path, rows: int = 2, cluster: dict[str, Any] | None = None, **hyperparameters: Any) -> Path:
    """Writes the example's job with a few rows and returns its path."""
    job = yaml.safe_load((LEDGER / "job.yaml").read_text())
    job = {key: job[key] for key in ("training_file", "seed", "method")} | {"model": str(LEDGER / "base")}
    with (LEDGER / job["training_file"]).open() as file:
        (folder / "train.jsonl").write_text("".join(islice(file, rows)))
    job |= {"training_file": "train.jsonl", "cluster": cluster or {}}
    job["method"]["reinforcement"] |= {
        "hyperparameters": hyperparameters,
        "limits": {"max_tool_calls": 6, "max_completion_tokens": 200},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder / "job.yaml"


def test_check_reports_all_mistakes_in_one_list(tmp_path: Path, environment: dict[str, str]) -> None:
    rows = ['{"messages": [', json.dumps({"messages": [{"role": "user", "content": "x"}], "right": "1"})]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    (tmp_path / "job.yaml").write_text(MANY_MISTAKES)
    start = time.monotonic()
    done = run("check", tmp_path / "job.yaml", "--runs", tmp_path / "runs", environment=environment)
    assert done.returncode == 2, done.stdout
    assert time.monotonic() - start < SECONDS
    for text in (
        "the job has 5 problems",
        f"method.reinforcement.algorithm.top_p ({tmp_path}/job.yaml:8)",
        f"method.reinforcement.api_key ({tmp_path}/job.yaml:9)",
        f"cluster.context_length ({tmp_path}/job.yaml:10)",
        "training_file (rows.jsonl:1): is not valid JSON",
        f"model ({tmp_path}/job.yaml:1): the folder /no/such/model does not exist",
    ):
        assert text in done.stdout
    assert done.stdout.count("->") == 5
    assert environment["LEDGER_TOKEN"] not in done.stdout
    assert not (tmp_path / "runs").exists()
    assert processes_left() == []


def test_train_refuses_a_job_whose_token_the_endpoints_reject(tmp_path: Path, environment: dict[str, str]) -> None:
    token = "not-the-token-4711"
    done = run("train", write_job(tmp_path), "--runs", tmp_path, environment=environment | {"LEDGER_TOKEN": token})
    assert done.returncode == 2, done.stdout
    assert "the job has 4 problems" in done.stdout
    assert done.stdout.count("[endpoint_refused]") == 4
    assert f"{environment['LEDGER_TOOLS_URL']}/tools/cat) rejected the request with HTTP 401" in done.stdout
    assert f"{environment['LEDGER_GRADER_URL']}/grade) rejected the request with HTTP 401" in done.stdout
    assert token not in done.stdout
    assert processes_left() == []


def test_train_refuses_a_job_that_needs_more_cores_than_the_cluster_has(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    job = write_job(tmp_path, cluster={"engines": 500, "engine_cores": 2})
    done = run("train", job, "--runs", tmp_path, environment=environment)
    assert done.returncode == 2, done.stdout
    text = f"the job needs 1001 cores (engines 500 x 2, learner ranks 1 x 1), but the cluster has {os.cpu_count()}"
    assert text in done.stdout
    assert processes_left() == []


def test_an_address_without_a_cluster_is_reported_at_once(tmp_path: Path, environment: dict[str, str]) -> None:
    done = run("check", write_job(tmp_path), "--address", "127.0.0.1:1", "--config", CONFIG, environment=environment)
    assert done.returncode == 2, done.stdout
    assert "127.0.0.1:1: Connection refused [no_cluster]" in done.stdout


def test_a_server_reports_which_port_is_in_use(tmp_path: Path, environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ["--grader-port", str(port), "--ports-file", str(tmp_path / "ports.json")]
        done = subprocess.run(
            [sys.executable, "-m", "examples.ledger.server", *arguments],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 1
    assert f"cannot listen on port {port} of 127.0.0.1: Address already in use" in done.stderr
    assert "give another with --grader-port" in done.stderr
    assert not (tmp_path / "ports.json").exists()


@pytest.mark.nightly
@pytest.mark.timeout(600)  # three engine starts
def test_killed_engines_are_replaced_and_no_rollout_is_lost(tmp_path: Path, environment: dict[str, str]) -> None:
    """Kills vLLM's process below a rollout worker, then a rollout worker itself."""
    kills = {"step 1/8": "VLLM::EngineCore", "step 5/8": "ray::RolloutWorker"}
    job = write_job(tmp_path, batch_size=2, n_epochs=8, eval_interval=8)
    before = unheld()
    with subprocess.Popen(
        [AGENT_RFT, "train", str(job), "--runs", str(tmp_path / "runs")],
        env=marked(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as training:
        assert training.stdout is not None
        output = []
        for line in training.stdout:
            output.append(line)
            for when, name in kills.items():
                if f"{when}:" in line:
                    kill(name)
    text = "".join(output)
    assert training.returncode == 0, text
    assert "Traceback" not in text
    assert processes_left() == []
    assert left_behind(before) == set()

    (path,) = (tmp_path / "runs").iterdir()
    kept = RunFolder(path)
    replaced = [event.event for event in kept.events() if isinstance(event.event, EngineReplaced)]
    assert [event.engine for event in replaced] == ["engine-0"] * 2
    assert [metrics["step"] for metrics in kept.metrics()] == list(range(1, 9))
    assert all(metrics["canary_gap"] < 1e-3 for metrics in kept.metrics())
    groups = [group for step in range(1, 9) for group in kept.read_groups(f"step-{step:06d}")]
    assert {len(group.rollouts) for group in groups} == {16}  # `compute_multiplier: auto` doubles groups of few rows
    assert {d.reason for group in groups for d in group.discarded} == {"engine_failed"}
    (*_, last) = kept.metrics()
    balance = [last[f"rollout_attempts/{state}"] for state in ("graded", "discarded", "cancelled", "in_flight")]
    assert last["rollout_attempts/started"] == sum(balance)
