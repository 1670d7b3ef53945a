"""A real Prometheus, set up by `agent-rft observe`, watches real jobs with faults in them: what dashboards and alerts
ask for is there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.observability.alerts import ALERTS
from cluster.observability.files import DASHBOARDS
from tests.chaos.ledger import FaultyLedger, faulty_ledger
from tests.chaos.plan import Faults, Latency, Plan
from tests.e2e.command import AGENT_RFT, CONFIG
from tests.prometheus import Prometheus, free_port, prometheus
from trainer.metrics import METRICS, prometheus_name

LEDGER = Path(__file__).parents[2] / "examples" / "ledger"
BIN = Path(sys.executable).parent
TOOLS = ("tools/list", "tools/search", "tools/cat")
FAULTS = Plan(
    seed=2,
    endpoints={
        **dict.fromkeys(TOOLS, Faults(Latency(0.02, 0.3), {"503": 0.1, "500": 0.1, "drop": 0.03, "404": 0.03})),
        "grade": Faults(shares={"500": 0.04}, sticky=True),
    },
)
ELSEWHERE = {"judge_tokens/<model>"}
"""Judges have no part in these jobs: a unit test shows what they cost."""


@pytest.fixture(scope="module")
def faulty() -> Iterator[FaultyLedger]:
    with faulty_ledger(FAULTS) as faulty:
        yield faulty


@pytest.fixture(scope="module")
def environment(faulty: FaultyLedger) -> dict[str, str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    ports = {"AGENT_RFT_METRICS_PORT": str(free_port()), "AGENT_RFT_CONFIG": str(CONFIG)}
    return {**faulty.environment, **ports, "PATH": path, "RAY_AUTH_MODE": "disabled"}


@pytest.fixture(scope="module")
def address(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a cluster that ends with the tests."""
    port, log_path, home = free_port(), tmp_path_factory.mktemp("ray") / "head.log", Path(f"/tmp/rft-m-{os.getpid()}")
    command = [BIN / "ray", "start", "--head", "--block", "--num-cpus=4", f"--port={port}", f"--temp-dir={home}"]
    command += ["--node-ip-address=127.0.0.1", f"--dashboard-port={free_port()}", "--dashboard-host=127.0.0.1"]
    command += [f"--metrics-export-port={free_port()}"]
    with log_path.open("wb") as log:
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 240
        while "Ray runtime started" not in log_path.read_text():
            assert head.poll() is None and time.monotonic() < deadline, log_path.read_text()
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        head.terminate()
        try:
            head.wait(60)
        except subprocess.TimeoutExpired:  # it had not come up yet
            os.killpg(head.pid, signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)


def reinforcement_job(folder: Path) -> Path:
    """Eight steps of the example's job that have something of everything: long enough to be seen while it goes on."""
    job = yaml.safe_load((LEDGER / "job.yaml").read_text())
    method = job["method"]["reinforcement"]
    endpoint = method["grader"]
    for tool in method["tools"]:
        tool |= {"idempotent": True, "hedge_after_s": 0.1, "max_retries": 1}
    for name, rows in (("training_file", 16), ("validation_file", 4), ("test_file", 4)):
        with (LEDGER / job[name]).open() as file:
            (folder / f"{name}.jsonl").write_text("".join(islice(file, rows)))
        job[name] = f"{name}.jsonl"
    brief = {"type": "length", "max_chars": 4}
    has_a_one = {"type": "string_check", "input": "{{ sample.output_text }}", "operation": "like", "reference": "1"}
    method |= {
        "grader": {"type": "multi", "graders": {"right": endpoint, "brief": brief}, "calculate_output": "right"},
        "guards": [{"name": "has_a_one", "reward": 0, "grader": has_a_one}],
        "held_out_grader": endpoint,
        "hyperparameters": {"batch_size": 8, "n_epochs": 4, "eval_interval": 3},
    }
    method["algorithm"] |= {"kl_coef": 0.01}
    (folder / "job.yaml").write_text(yaml.safe_dump(job | {"model": str(LEDGER / "base")}))
    return folder / "job.yaml"


def supervised_job(folder: Path) -> Path:
    """Two steps on conversations."""
    rows = []
    for number in range(8):
        messages = [{"role": "user", "content": "ACME 2015"}, {"role": "assistant", "content": str(number)}]
        rows.append(json.dumps({"messages": messages}) + "\n")
    (folder / "train.jsonl").write_text("".join(rows))
    job = {"model": str(LEDGER / "base"), "training_file": "train.jsonl", "validation_file": "train.jsonl"}
    job |= {"method": {"type": "supervised", "supervised": {"hyperparameters": {"batch_size": 4, "n_epochs": 1}}}}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder / "job.yaml"


@contextmanager
def api(folder: Path, address: str, environment: dict[str, str]) -> Iterator[Callable[[str], int]]:
    """A server on the cluster; gives a function that asks for a path and returns the status."""
    command = [AGENT_RFT, "serve", "--folder", str(folder), "--port", "0", "--address", address]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            key, url = "", ""
            while not url:
                line = server.stdout.readline()
                assert line, "the server ended before it served"
                key = line.split()[-1] if "API key" in line else key
                url = line.split()[2] if line.startswith("serving at") else url

            def get(path: str) -> int:
                request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {key}"})
                try:
                    with urllib.request.urlopen(request, timeout=60) as answer:
                        return int(answer.status)
                except urllib.error.HTTPError as error:
                    return error.code

            yield get
        finally:
            server.terminate()


@contextmanager
def job(folder: Path, file: Path, address: str, environment: dict[str, str]) -> Iterator[Callable[[], None]]:
    """A job that trains; gives a function that waits until it has succeeded."""
    command = [AGENT_RFT, "train", str(file), "--runs", str(folder / "runs"), "--address", address]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as done:

        def succeed() -> None:
            assert done.wait(600) == 0, (folder / "log").read_text()

        try:
            yield succeed
        finally:
            done.terminate()


@pytest.fixture(scope="module")
def seen(environment: dict[str, str], address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """What Prometheus saw of a server, and of two jobs that ran side by side."""
    folder = tmp_path_factory.mktemp("observed")
    observe = [AGENT_RFT, "observe", "--out", str(folder / "pair"), "--address", address]
    subprocess.run(observe, env=environment, check=True)
    config = folder / "pair" / "prometheus.yml"
    config.write_text(re.sub(r"(scrape_interval|evaluation_interval): 15s", r"\1: 1s", config.read_text()))
    (first := folder / "reinforcement").mkdir()
    (second := folder / "supervised").mkdir()
    with prometheus(config, folder / "data") as server:
        with api(folder / "state", address, environment) as get:
            assert (get("/models"), get("/made-up")) == (200, 404)
            with (
                job(first, reinforcement_job(first), address, environment) as learn,
                job(second, supervised_job(second), address, environment) as imitate,
            ):
                imitate()
                learn()
            deadline = time.monotonic() + 120
            asked = "rate(agent_rft_api_request_seconds_count[1m]) > 0", "ray_serve_deployment_replica_healthy"
            while not all(map(server.series, asked)):
                assert time.monotonic() < deadline
                assert get("/models") == 200
                time.sleep(1)
        yield server


@pytest.mark.timeout(900)
def test_each_metric_of_the_list_is_there(seen: Prometheus) -> None:
    wanted = {name: prometheus_name(name) for name, metric in METRICS.items() if metric.kind != "file"}
    suffix = {"counter": "_total", "histogram": "_count", "gauge": ""}
    missing = {n for n, shown in wanted.items() if shown + suffix[METRICS[n].kind] not in seen.names()}
    assert missing == ELSEWHERE


def test_each_panel_shows_something_and_each_alert_has_what_it_asks_for(seen: Prometheus) -> None:
    values = {"$job": ".+", "$endpoint": ".+", "$window": "1m"}
    empty = []
    for dashboard in DASHBOARDS:
        for expr in dashboard.expressions:
            for name, value in values.items():
                expr = expr.replace(name, value)
            if not seen.series(expr):
                empty.append((dashboard.name, expr))
    assert empty == []
    for alert in ALERTS:
        seen.series(alert.expr)
        names = set(re.findall(r"agent_rft_\w+", alert.expr))
        assert not {name for name in names if not seen.series(name)}, alert.name


def test_metrics_agree_with_what_happened(seen: Prometheus, faulty: FaultyLedger) -> None:
    def last(expr: str) -> dict[str, float]:
        found = seen.series(expr)
        return {",".join(f"{v}" for v in s["metric"].values()): float(s["values"][-1][1]) for s in found}

    record = faulty.record()["endpoints"]
    assert sum(last("sum by (job) (agent_rft_endpoint_retries_total)").values()) > 0
    answered = sum(sum(record[tool]["attempts"].values()) for tool in TOOLS if tool in record)
    assert 0 < sum(last('sum(agent_rft_endpoint_calls_total{endpoint=~"tool.*"})').values()) <= answered
    ended = last("sum by (outcome) (agent_rft_rollouts_total)")
    assert ended["graded"] > 0
    assert ended["tool_failed"] + ended["grader_failed"] > 0
    assert sum(ended.values()) == sum(last("agent_rft_rollouts_started_total").values())  # the end was seen
    assert last("agent_rft_rollouts_in_flight").popitem()[1] == 0.0
    assert last('max by (process) (agent_rft_version{job=~".*ledger"})') == {"driver": 8.0}


def targets(seen: Prometheus) -> dict[str, Any]:
    return {target["labels"]["job"]: target for target in seen.targets()}


def test_labels_are_few_and_hold_nothing_that_is_secret(seen: Prometheus, environment: dict[str, str]) -> None:
    for metric in (series["metric"] for series in seen.series('{__name__=~"agent_rft_.+"}')):
        assert not re.search(r"trace_|call_[0-9a-f]{8}", " ".join(metric.values())), metric
        assert environment["LEDGER_TOKEN"] not in " ".join(metric.values())
    assert len(seen.series('count by (__name__, job, process) ({__name__=~"agent_rft_.+"})')) < 500
    assert targets(seen).keys() == {"agent-rft", "ray"}


def test_nothing_listens_once_the_jobs_have_ended(seen: Prometheus, environment: dict[str, str]) -> None:
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{environment['AGENT_RFT_METRICS_PORT']}/metrics", timeout=5)
