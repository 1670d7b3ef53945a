"""Jobs on an existing cluster as its operators see them: by `ray job`, by Ray's dashboard and by Prometheus.

The Prometheus is a real one, set up by `agent-rft observe`; it must find every series that dashboards and alerts query.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from agent_rft.cluster.observability.alerts import ALERTS
from agent_rft.cluster.observability.monitoring_files import DASHBOARDS
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.metrics import METRICS, to_prometheus_name
from agent_rft.trainer.loop.checkpoint import Checkpoints
from docs.dashboards.draw import MODULES, Shown, bundle, draw, filled
from tests.chaos.ledger import FaultyLedger, faulty_ledger
from tests.chaos.plan import Faults, Latency, Plan
from tests.e2e.command import AGENT_RFT, CONFIG, MARK, processes_left
from tests.e2e.head import BIN, Head, head
from tests.support.fakes_http import unused_port
from tests.support.own_modules import write_own_modules
from tests.support.paths import LEDGER
from tests.support.prometheus import Prometheus, prometheus

NEEDED = ("LEDGER_TOOLS_URL", "LEDGER_GRADER_URL", "LEDGER_TOKEN", "AGENT_RFT_METRICS_PORT")
TOOLS = ("tools/list", "tools/search", "tools/cat")
FAULTS = Plan(
    seed=2,
    endpoints={
        **dict.fromkeys(TOOLS, Faults(Latency(0.02, 0.3), {"503": 0.05, "500": 0.05, "drop": 0.02, "404": 0.02})),
        "grade": Faults(shares={"500": 0.15}, sticky=True),
    },
)
"""Faults follow ids, which differ in each run. Of 70 graded rollouts, one fails in all but a run of 80,000."""
ELSEWHERE = {
    "api_ignored_keys/<key>",
    "judge_tokens/<model>",
    "metric_source_errors/<error>",
    "tracker_failures/<tracker>",
}
"""These jobs have no such requests, judges, trackers or broken sources of metrics: unit tests cover them."""
WITHOUT_A_GPU = {"GPU usage", "GPU memory in use", "GPU power"}
"""Panels that are empty here; tests/contracts/test_panels.py asks them of both exporters' samples."""
WITHOUT_TRACKERS = {"Failed trackers"}
MAYBE_NOT_NOW = {"Failing endpoint"}
"""A figure that is empty while no endpoint fails."""
STEPS = 2
"""The job is stopped after this many steps, one validation included."""
STEPS_TIMEOUT_S = 240.0


@pytest.fixture(scope="module")
def faulty() -> Iterator[FaultyLedger]:
    with faulty_ledger(FAULTS) as faulty:
        yield faulty


@pytest.fixture(scope="module")
def environment(faulty: FaultyLedger) -> dict[str, str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    ports = {"AGENT_RFT_METRICS_PORT": str(unused_port()), "AGENT_RFT_CONFIG": str(CONFIG)}
    return {**faulty.environment, **ports, "PATH": path, "RAY_AUTH_MODE": "disabled"}


@pytest.fixture(scope="module")
def cluster(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with head(tmp_path_factory.mktemp("ray") / "head.log", environment, cores=4) as cluster:
        yield cluster


class RayJobs:
    """`ray job`, run from a folder of jobs, and the dashboard's API."""

    def __init__(self, folder: Path, dashboard: str, environment: dict[str, str]) -> None:
        self._folder, self._dashboard, self._environment = folder, dashboard, environment

    def submit(self, submission: str, *command: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        variables = {name: self._environment[name] for name in NEEDED}
        variables |= {"RAY_JOB_STOP_WAIT_TIME_S": "60", MARK: str(os.getpid())}
        options += ("--submission-id", submission, "--working-dir", str(self._folder))
        options += ("--runtime-env-json", json.dumps({"env_vars": variables}))
        return self.ray("submit", *options, "--", "agent-rft", *command)

    def ray(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `ray job VERB ...`."""
        return subprocess.run(
            [BIN / "ray", "job", verb, "--address", self._dashboard, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=500,
        )

    def info(self, submission: str) -> Any:
        return self._get(f"jobs/{submission}")

    def actors(self, of: str = "") -> dict[str, str]:
        """Returns the state by name of all actors whose name starts with `of`."""
        found = self._get("v0/actors?detail=1&limit=1000")["data"]["result"]["result"]
        return {actor["name"]: actor["state"] for actor in found if actor["name"] and actor["name"].startswith(of)}

    def until_at_step(self, submission: str, step: int) -> str:
        """Waits until the job has done `step` steps and returns its status message."""
        deadline = time.monotonic() + STEPS_TIMEOUT_S
        while True:
            info = self.info(submission)
            found = re.search(r"step (\d+)", info["message"])
            if found and int(found[1]) >= step:
                return str(info["message"])
            assert info["status"] in ("PENDING", "RUNNING"), self.ray("logs", submission).stdout
            assert time.monotonic() < deadline, info
            time.sleep(0.2)

    def _get(self, path: str) -> Any:
        with urlopen(f"{self._dashboard}/api/{path}", timeout=30) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def jobs(cluster: Head, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[RayJobs, Path]:
    """`ray job`, and the working directory that is submitted."""
    folder = tmp_path_factory.mktemp("jobs")
    shutil.copytree(LEDGER / "base", folder / "base")
    shutil.copy(CONFIG, folder / "agent-rft.yaml")  # found in the working directory
    write_own_modules(folder)
    return RayJobs(folder, cluster.dashboard, environment), folder


def write_reinforcement(folder: Path) -> None:
    """Writes the example's job with every feature, colocated on one core; it takes far longer than the tests."""
    job = yaml.safe_load((LEDGER / "job.yaml").read_text())
    method = job["method"]["reinforcement"]
    endpoint = method["grader"]
    for tool in method["tools"]:
        tool |= {"idempotent": True, "hedge_after_s": 0.1, "max_retries": 1}
    for name, rows in (("training_file", 200), ("validation_file", 4), ("test_file", 4)):
        with (LEDGER / job[name]).open() as file:
            (folder / f"{name}.jsonl").write_text("".join(islice(file, rows)))
        job[name] = f"{name}.jsonl"
    brief = {"type": "length", "max_chars": 4}
    has_a_one = {"type": "string_check", "input": "{{ sample.output_text }}", "operation": "like", "reference": "1"}
    method |= {
        "grader": {"type": "multi", "graders": {"right": endpoint, "brief": brief}, "calculate_output": "right"},
        "guards": [{"name": "has_a_one", "reward": 0, "grader": has_a_one}],
        "held_out_grader": endpoint,
        "hyperparameters": {"batch_size": 4, "n_epochs": 4, "eval_interval": 2},
    }
    method["algorithm"] |= {"kl_coef": 0.01, "max_staleness": 0}
    job["cluster"] = {"colocated": True}
    (folder / "tune.yaml").write_text(yaml.safe_dump(job))


def write_supervised(folder: Path) -> None:
    """Writes a supervised job of two steps."""
    rows = []
    for number in range(8):
        messages = [{"role": "user", "content": "ACME 2015"}, {"role": "assistant", "content": str(number)}]
        rows.append(json.dumps({"messages": messages}) + "\n")
    (folder / "conversations.jsonl").write_text("".join(rows))
    job = {"model": "base", "training_file": "conversations.jsonl", "validation_file": "conversations.jsonl"}
    job |= {"method": {"type": "supervised", "supervised": {"hyperparameters": {"batch_size": 4, "n_epochs": 1}}}}
    (folder / "imitate.yaml").write_text(yaml.safe_dump(job))


@contextmanager
def api(folder: Path, address: str, environment: dict[str, str]) -> Iterator[Callable[[str], int]]:
    """Runs a server on the cluster; gives a function that requests a path and returns the status."""
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
                try:
                    with urlopen(Request(url + path, headers={"Authorization": f"Bearer {key}"}), timeout=60) as answer:
                        return int(answer.status)
                except urllib.error.HTTPError as error:
                    return error.code

            yield get
        finally:
            server.terminate()


@dataclass(frozen=True)
class Observed:
    """What was observed of a server and of two concurrent jobs, one of which was stopped before its end."""

    prometheus: Prometheus
    run: RunFolder
    """The run of the stopped job."""
    message: str
    actors: dict[str, str]
    log: str
    left: list[str]

    @cached_property
    def steps(self) -> int:
        return len(self.run.metrics())


@pytest.fixture(scope="module")
def observed(
    environment: dict[str, str],
    cluster: Head,
    jobs: tuple[RayJobs, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Observed]:
    folder = tmp_path_factory.mktemp("observed")
    ray_jobs, working = jobs
    observe = [AGENT_RFT, "observe", "--out", str(folder / "pair"), "--address", cluster.address]
    subprocess.run(observe, env=environment, check=True)
    config = folder / "pair" / "prometheus.yml"
    config.write_text(re.sub(r"(scrape_interval|evaluation_interval): 15s", r"\1: 1s", config.read_text()))
    write_reinforcement(working)
    write_supervised(working)
    with prometheus(config, folder / "data") as seen:
        done = ray_jobs.submit("tune-1", "train", "tune.yaml", "--runs", str(folder / "tuned"), options=("--no-wait",))
        assert done.returncode == 0, done.stdout + done.stderr
        with api(folder / "state", cluster.address, environment) as get:
            assert (get("/models"), get("/made-up")) == (200, 404)
            imitate = [AGENT_RFT, "train", "imitate.yaml", "--runs", str(folder / "runs"), "--address", cluster.address]
            done = subprocess.run(imitate, cwd=working, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            deadline = time.monotonic() + 120
            asked = "rate(agent_rft_api_request_seconds_count[1m]) > 0", "ray_serve_deployment_replica_healthy"
            while not all(map(seen.series, asked)):
                assert time.monotonic() < deadline
                assert get("/models") == 200
                time.sleep(1)
            message = ray_jobs.until_at_step("tune-1", STEPS)
            (run,) = (folder / "tuned").iterdir()
            actors = ray_jobs.actors(f"{run.name}:")
            log = ray_jobs.ray("logs", "tune-1").stdout
            stopped = ray_jobs.ray("stop", "tune-1")
            assert stopped.returncode == 0, stopped.stdout + stopped.stderr
            left = processes_left()
        yield Observed(seen, RunFolder(run), message, actors, log, left)


@pytest.mark.timeout(900)
def test_a_job_is_watched_and_stopped_with_rays_own_tools(observed: Observed, jobs: tuple[RayJobs, Path]) -> None:
    name, ray_jobs = observed.run.path.name, jobs[0]
    assert re.fullmatch(rf"{name}: step \d+ of 200, reward -?\d\.\d+", observed.message)
    parts = ("engine-0", "learner-rank-0", "dispatcher-0", "grader-pool")
    assert [observed.actors[f"{name}:{part}"] for part in parts] == ["ALIVE"] * 4
    assert "step 1/200" in observed.log
    assert ray_jobs.info("tune-1")["status"] == "STOPPED"
    latest = Checkpoints(observed.run.checkpoints).latest()
    assert latest is not None
    assert latest[1].step == observed.steps >= STEPS
    assert all(metrics["staleness_max"] == 0 for metrics in observed.run.metrics())
    assert observed.left == []


def test_an_invalid_job_ends_with_the_commands_exit_code_and_message(jobs: tuple[RayJobs, Path]) -> None:
    ray_jobs, _ = jobs
    failed = ray_jobs.submit("wrong-1", "train", "nowhere.yaml")
    assert failed.returncode == 1  # Ray's own
    info = ray_jobs.info("wrong-1")
    assert (info["status"], info["driver_exit_code"]) == ("FAILED", 2)
    assert "nowhere.yaml" in ray_jobs.ray("logs", "wrong-1").stdout


def test_an_invalid_job_that_is_not_to_be_retried_ends_as_stopped_and_says_why(jobs: tuple[RayJobs, Path]) -> None:
    """KubeRay retries what has failed, on new clusters, and shows the message of what was stopped."""
    ray_jobs, _ = jobs
    ray_jobs.submit("wrong-2", "train", "nowhere.yaml", "--no-retry-refused")
    info = ray_jobs.info("wrong-2")
    assert (info["status"], info["driver_exit_code"]) == ("STOPPED", 2), info["message"]
    assert "the job was refused: " in info["message"] and "nowhere.yaml" in info["message"]


def test_no_actor_is_left_on_the_cluster(observed: Observed, jobs: tuple[RayJobs, Path]) -> None:
    assert "ALIVE" not in jobs[0].actors().values()


def test_prometheus_has_each_listed_metric(observed: Observed) -> None:
    wanted = {name: to_prometheus_name(name) for name, metric in METRICS.items() if metric.kind != "file"}
    suffix = {"counter": "_total", "histogram": "_count", "gauge": ""}
    names = observed.prometheus.names()
    missing = {name for name, shown in wanted.items() if shown + suffix[METRICS[name].kind] not in names}
    assert missing == ELSEWHERE


def test_each_panel_shows_data_and_each_alert_has_its_metrics(observed: Observed) -> None:
    values = {"job": ".+", "endpoint": ".+", "window": "1m", "steps": "1m"}
    empty = set[str]()
    for dashboard in DASHBOARDS:
        thresholds = {query.expr for _, panel in dashboard.numbered_panels for query in panel.queries if query.dashed}
        for name, expr in dashboard.named_expressions:
            has_data = bool(observed.prometheus.series(filled(expr, values)))
            if not has_data and expr not in thresholds:  # those of a job are values of hours ago
                empty.add(name)
    assert empty == WITHOUT_A_GPU | WITHOUT_TRACKERS
    elsewhere = {f"{to_prometheus_name(name)}_total" for name in ELSEWHERE}
    for alert in ALERTS:
        observed.prometheus.series(alert.expr)
        names = set(re.findall(r"\b(?:agent_rft_|ray_)\w+|\bup\b", alert.expr))
        assert not {name for name in names - elsewhere if not observed.prometheus.series(name)}, alert.name


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_each_panel_is_drawn_by_grafanas_components(observed: Observed, tmp_path: Path) -> None:
    bundle(MODULES, tmp_path)
    values = {"job": observed.run.path.name, "endpoint": ".+", "window": "1m", "steps": "1m"}
    first, *_, last = (
        float(time) for time, _ in observed.prometheus.series("sum(agent_rft_train_mean_reward)")[0]["values"]
    )
    shown = Shown(observed.prometheus.url, first - 30, last, values)
    for dashboard in DASHBOARDS:
        queried = [panel.title for _, row in dashboard.rows for panel in row if panel.queries]
        drawn = {panel.title: panel.series for panel in draw(dashboard, shown, tmp_path)}
        assert set(drawn) == set(queried)
        assert {
            title for title, series in drawn.items() if not series
        } <= WITHOUT_A_GPU | WITHOUT_TRACKERS | MAYBE_NOT_NOW
        assert (tmp_path / f"{dashboard.name}.png").stat().st_size > 20_000


def test_metrics_agree_with_what_happened(observed: Observed, faulty: FaultyLedger) -> None:
    def last(expr: str) -> dict[str, float]:
        found = observed.prometheus.series(expr)
        return {",".join(f"{v}" for v in s["metric"].values()): float(s["values"][-1][1]) for s in found}

    record = faulty.record()["endpoints"]
    assert sum(last("sum by (job) (agent_rft_endpoint_retries_total)").values()) > 0
    answered = sum(sum(record[tool]["attempts"].values()) for tool in TOOLS if tool in record)
    assert 0 < sum(last('sum(agent_rft_endpoint_calls_total{endpoint=~"tool.*"})').values()) <= answered
    ended = last("sum by (outcome) (agent_rft_rollouts_total)")
    assert ended["graded"] > 0
    assert ended.get("tool_failed", 0) + ended.get("grader_failed", 0) > 0
    assert sum(ended.values()) == sum(
        last("agent_rft_rollouts_started_total").values()
    )  # the last scrape came after the jobs' end
    assert last("agent_rft_rollouts_in_flight").popitem()[1] == 0.0
    version = last(f'max by (process) (agent_rft_version{{job="{observed.run.path.name}"}})')
    assert version == {"driver": observed.steps}
    outcomes = ("done", "stopped", "failed")  # of one job each, but none failed
    ended = {each: last(f'max by (outcome) (agent_rft_jobs_ended_total{{outcome="{each}"}})') for each in outcomes}
    assert ended == {each: {each: float(each != "failed")} for each in outcomes}


def test_labels_are_few_and_contain_no_secrets(observed: Observed, environment: dict[str, str]) -> None:
    for metric in (series["metric"] for series in observed.prometheus.series('{__name__=~"agent_rft_.+"}')):
        assert not re.search(r"trace_|call_[0-9a-f]{8}", " ".join(metric.values())), metric
        assert environment["LEDGER_TOKEN"] not in " ".join(metric.values())
    assert len(observed.prometheus.series('count by (__name__, job, process) ({__name__=~"agent_rft_.+"})')) < 500
    assert {target["labels"]["job"] for target in observed.prometheus.targets()} == {"agent-rft", "agent-rft-ray"}


@pytest.mark.usefixtures("observed")
def test_nothing_listens_once_the_jobs_have_ended(environment: dict[str, str]) -> None:
    with pytest.raises(OSError):
        urlopen(f"http://127.0.0.1:{environment['AGENT_RFT_METRICS_PORT']}/metrics", timeout=5)
