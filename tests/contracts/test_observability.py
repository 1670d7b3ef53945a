"""Dashboards and alerts query listed metrics only, the documents about them are current, and each alert fires."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from agent_rft.actors.runtime.telemetry.exporter import MetricsAddress, Telemetry
from agent_rft.cluster.observability.alerts import ALERTS
from agent_rft.cluster.observability.dashboards.grafana import WIDTH, dashboard_json
from agent_rft.cluster.observability.monitoring_files import (
    DASHBOARDS,
    RAY_DISCOVERY,
    ScrapeTargets,
    rule_groups,
    write_monitoring,
)
from agent_rft.metrics import METRICS, to_prometheus_name
from tests.contracts.alert_cases import CASES, STEPS_S, promtool_test
from tests.contracts.manifests import K8S
from tests.support.fakes_http import unused_port
from tests.support.paths import ROOT
from tests.support.prometheus import binary, prometheus

SUFFIXES = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "file": ()}
SAMPLES = {to_prometheus_name(name) + suffix for name, metric in METRICS.items() for suffix in SUFFIXES[metric.kind]}


def metrics_in(expr: str) -> set[str]:
    return set(re.findall(r"\bagent_rft_\w+", expr))


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_dashboards_query_listed_metrics(dashboard: object) -> None:
    text = json.dumps(dashboard_json(dashboard))  # type: ignore[arg-type]
    assert metrics_in(text)
    assert metrics_in(text) <= SAMPLES


def test_no_query_spells_the_name_of_a_metric_by_hand() -> None:
    """Names come from the list, so that one that is renamed or removed there cannot remain in a dashboard or alert."""
    for path in sorted((ROOT / "cluster" / "observability").rglob("*.py")):
        literals = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        spelled = set().union(*(metrics_in(value) for value in literals if isinstance(value, str)))
        documented = {"agent_rft_rollouts_total"} if path.name == "promql.py" else set()
        assert spelled == documented, path


def test_alerts_query_listed_metrics_and_have_a_runbook() -> None:
    for alert in ALERTS:
        assert metrics_in(alert.expr) or "ray_" in alert.expr, alert.name
        assert metrics_in(alert.expr) <= SAMPLES, alert.name
        assert len(alert.runbook) > 40, alert.name


def test_runbooks_name_panels_that_exist() -> None:
    panels = {board.title: {panel.title for _, row in board.rows for panel in row} for board in DASHBOARDS}
    named = [found for alert in ALERTS for found in re.findall(r"'([^']+)' in the (\w+) dashboard", alert.runbook)]
    assert named
    for panel, board in named:
        assert panel in panels[f"agent-rft: {board}"]


def test_each_alert_links_to_a_panel_of_its_metrics_that_draws_its_threshold() -> None:
    boards = [json.loads(path.read_text()) for path in (K8S / "monitoring" / "dashboards").glob("*.json")]
    panels = {(board["uid"], str(panel["id"])): panel for board in boards for panel in board["panels"]}
    rules = yaml.safe_load((K8S / "monitoring" / "alerts.yaml").read_text())["spec"]["groups"][0]["rules"]
    assert len(rules) > 15
    for alert, rule in zip(ALERTS, rules, strict=True):
        panel = panels[rule["annotations"]["__dashboardUid__"], rule["annotations"]["__panelId__"]]
        queries = [target["expr"] for target in panel["targets"]]
        value, threshold = alert.condition.value, alert.condition.threshold
        names = set(re.findall(r"\b(?:agent_rft_\w+|ray_\w+|up)\b", value))
        assert names and all(any(name in query for query in queries) for name in names), alert.name
        beginning = f"{value} {alert.condition.comparison} "
        assert rule["expr"].startswith(beginning), alert.name
        right = rule["expr"].removeprefix(beginning)
        if isinstance(threshold, str):
            assert right.startswith(threshold) and any(threshold in query for query in queries), alert.name
        else:
            shown = panel["fieldConfig"]["defaults"]
            assert shown["custom"]["thresholdsStyle"] == {"mode": "line"}, alert.name
            assert float(right.split()[0]) in [step["value"] for step in shown["thresholds"]["steps"]], alert.name


def test_panels_do_not_overlap() -> None:
    for dashboard in DASHBOARDS:
        panels = dashboard_json(dashboard)["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        taken = set()
        for grid in (panel["gridPos"] for panel in panels):
            cells = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
            assert not cells & taken
            assert all(x < WIDTH for x, _ in cells)
            taken |= cells


def test_each_alert_links_to_its_section_of_the_runbook_that_the_operator_publishes() -> None:
    url = "https://wiki.example.com/agent-rft/RUNBOOK.md"
    command = [sys.executable, "-m", "agent_rft.cluster.observability", "--runbook-url", url]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    rule = yaml.safe_load(printed)
    links = [alert["annotations"].pop("runbook_url") for alert in rule["spec"]["groups"][0]["rules"]]
    headings = re.findall(r"^## (\w+)$", (K8S / "monitoring" / "RUNBOOK.md").read_text(), re.MULTILINE)
    assert links == [f"{url}#{heading.lower()}" for heading in headings]
    assert len(set(links)) == len(ALERTS)
    assert (rule["kind"], rule["spec"]) == ("PrometheusRule", rule_groups())


def promtool(*arguments: object) -> None:
    done = subprocess.run([binary("promtool"), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "cluster", [ScrapeTargets(["10.0.0.1", "10.0.0.2"]), ScrapeTargets(None, "http://10.0.0.1:8265")]
)
def test_prometheus_accepts_the_files_of_observe(tmp_path: Path, cluster: ScrapeTargets) -> None:
    write_monitoring(tmp_path, cluster)
    promtool("check", "config", tmp_path / "prometheus.yml")
    for path in tmp_path.rglob("*.y*ml"):
        assert yaml.safe_load(path.read_text()), path


class _Ray(BaseHTTPRequestHandler):
    """Ray's service discovery, with three addresses on one node."""

    def do_GET(self) -> None:
        assert self.path == RAY_DISCOVERY
        targets = [f"127.0.0.1:{port}" for port in (1, 2, 3)]
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps([{"labels": {"job": "ray"}, "targets": targets}]).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_prometheus_discovers_our_port_on_each_node_that_ray_lists(tmp_path: Path) -> None:
    port = unused_port()
    telemetry = Telemetry(MetricsAddress("a-job", "127.0.0.1", port), "driver", period_s=0.2)
    telemetry.recorder.record("train_mean_reward", 0.5)
    telemetry.recorder.record("rollout_wall_s/train", 3.0, "ab" * 16)  # an exemplar, which only OpenMetrics has
    ray = ThreadingHTTPServer(("127.0.0.1", 0), _Ray)
    threading.Thread(target=ray.serve_forever).start()
    write_monitoring(tmp_path, ScrapeTargets(None, f"http://127.0.0.1:{ray.server_port}", port))
    config = tmp_path / "prometheus.yml"
    config.write_text(config.read_text().replace("scrape_interval: 15s", "scrape_interval: 1s"))
    try:
        with prometheus(config, tmp_path / "data") as server:
            deadline = time.monotonic() + 60
            while not (
                (found := server.series("agent_rft_train_mean_reward"))
                and (exemplars := server.exemplars("agent_rft_rollout_wall_seconds_bucket"))
            ):
                assert time.monotonic() < deadline
                time.sleep(0.3)
            urls = {target["scrapeUrl"] for target in server.targets() if target["scrapePool"] == "agent-rft"}
    finally:
        ray.shutdown()
        ray.server_close()
        telemetry.close()
    assert urls == {f"http://127.0.0.1:{port}/metrics"}
    assert [found["labels"] for found in exemplars] == [{"trace_id": "ab" * 16}]
    assert [(s["metric"]["job"], s["metric"]["process"]) for s in found] == [("a-job", "driver")]


@pytest.mark.parametrize("step_s", [pytest.param(STEPS_S[0], marks=pytest.mark.nightly), *STEPS_S[1:]])
def test_each_alert_fires_in_its_case_only_however_long_steps_are(tmp_path: Path, step_s: int) -> None:
    write_monitoring(tmp_path, ScrapeTargets(["10.0.0.1"]))
    cases = tmp_path / "cases.yml"
    cases.write_text(json.dumps(promtool_test(step_s)))  # JSON is YAML, and faster to write
    promtool("test", "rules", cases)
    assert {alert.name for alert in ALERTS} == {name for case in CASES for name in case.fires}
