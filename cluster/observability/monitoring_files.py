"""Configuration of Prometheus and Grafana: files for `docker compose`, and the alert rules for Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agent_rft.actors.runtime.telemetry.exporter import DEFAULT_PORT
from agent_rft.cluster.observability.alerts import ALERTS
from agent_rft.cluster.observability.dashboards.endpoints import ENDPOINTS_DASHBOARD
from agent_rft.cluster.observability.dashboards.fleet import FLEET_DASHBOARD
from agent_rft.cluster.observability.dashboards.grafana import Dashboard, Panel, dashboard_json
from agent_rft.cluster.observability.dashboards.job import JOB_DASHBOARD
from agent_rft.cluster.observability.dashboards.learner import LEARNER_DASHBOARD
from agent_rft.cluster.observability.dashboards.service import SERVICE_DASHBOARD
from agent_rft.cluster.observability.promql import OUR_TARGETS, RAY_TARGETS

DASHBOARDS = (JOB_DASHBOARD, ENDPOINTS_DASHBOARD, FLEET_DASHBOARD, LEARNER_DASHBOARD, SERVICE_DASHBOARD)
RUNBOOK = "RUNBOOK.md"
PROMETHEUS_IMAGE, GRAFANA_IMAGE = "prom/prometheus:v3.5.0", "grafana/grafana:12.1.0"
SCRAPE_S = 15
RAY_DISCOVERY = "/api/prometheus/sd"


@dataclass(frozen=True, slots=True)
class ScrapeTargets:
    """Scrape targets of one Ray cluster.

    `ray` is the URL of Ray's dashboard, from which Prometheus discovers nodes as they join and leave, or None.
    `nodes` are the hosts that run our jobs; None means the nodes that `ray` reports. `port` serves our metrics there.
    """

    nodes: Sequence[str] | None
    ray: str | None = None
    port: int = DEFAULT_PORT


def prometheus_config(cluster: ScrapeTargets) -> dict[str, Any]:
    """Return the content of prometheus.yml.

    Ray's service discovery lists several ports with Ray's metrics per node, under another value of the label `job`. Our
    metrics are on `port` of these nodes.
    """
    discovery = [{"url": f"{cluster.ray}{RAY_DISCOVERY}", "refresh_interval": "30s"}]
    ours: dict[str, Any] = {"job_name": OUR_TARGETS, "honor_labels": True}
    if cluster.nodes is not None:
        ours["static_configs"] = [{"targets": [f"{node}:{cluster.port}" for node in cluster.nodes]}]
    else:
        on_our_port = {"source_labels": ["__address__"], "regex": r"(.+):\d+", "replacement": f"${{1}}:{cluster.port}"}
        ours["http_sd_configs"] = discovery
        ours["relabel_configs"] = [
            on_our_port | {"target_label": "__address__"},
            {"target_label": "job", "replacement": OUR_TARGETS},
        ]
    relabel = [{"target_label": "job", "replacement": RAY_TARGETS}]
    rays = {"job_name": RAY_TARGETS, "http_sd_configs": discovery, "relabel_configs": relabel}
    return {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [ours] if cluster.ray is None else [ours, rays],
    }


def write_monitoring(out: Path, cluster: ScrapeTargets, runbook_url: str | None = None) -> None:
    """Write the configuration of a Prometheus and a Grafana that watch this cluster, replacing existing files."""
    _write(out / "prometheus.yml", _yaml(prometheus_config(cluster)))
    _write(out / "alerts.yml", _yaml(rule_groups(runbook_url)))
    _write(out / RUNBOOK, runbook())
    _write(out / "docker-compose.yml", _COMPOSE)
    _write(out / "README.md", _README)
    source: dict[str, Any] = {"name": "Prometheus", "type": "prometheus", "access": "proxy", "isDefault": True}
    source |= {"url": "http://127.0.0.1:9090", "jsonData": {"timeInterval": f"{SCRAPE_S}s"}}
    provider = {"name": "agent-rft", "folder": "agent-rft", "type": "file", "options": {"path": "/dashboards"}}
    provisioning = out / "grafana" / "provisioning"
    _write(provisioning / "datasources" / "prometheus.yml", _yaml({"apiVersion": 1, "datasources": [source]}))
    _write(provisioning / "dashboards" / "agent-rft.yml", _yaml({"apiVersion": 1, "providers": [provider]}))
    for name, text in dashboard_files().items():
        _write(out / "grafana" / "dashboards" / name, text)


def rule_groups(runbook_url: str | None = None) -> dict[str, Any]:
    """Return Prometheus's rule file, which is also the `spec` of a PrometheusRule.

    Each alert links to its panel by the annotations that Grafana reads:
    https://grafana.com/docs/grafana/latest/alerting/alerting-rules/link-alert-rules-to-panels/
    With `runbook_url`, the URL of the published RUNBOOK.md, each alert also links to its section there.
    """
    rules = []
    panels = _panel_by_alert()
    for alert in ALERTS:
        board, number, _ = panels[alert.name]
        texts = {"summary": alert.summary, "description": alert.meaning, "runbook": alert.runbook}
        texts |= {"__dashboardUid__": board.uid, "__panelId__": str(number)}
        if runbook_url is not None:
            texts["runbook_url"] = f"{runbook_url}#{alert.name.lower()}"
        rules.append(
            {
                "alert": alert.name,
                "expr": alert.expr,
                "for": alert.wait,
                "labels": {"severity": alert.severity},
                "annotations": texts,
            }
        )
    return {"groups": [{"name": "agent-rft", "rules": rules}]}


def runbook() -> str:
    """Return the text of RUNBOOK.md. Its headings are the names of the alerts, the anchors of `runbook_url`."""
    lines = ["# Alert runbook", "", "Generated from `cluster/observability/alerts.py`.", ""]
    panels = _panel_by_alert()
    for alert in ALERTS:
        board, _, panel = panels[alert.name]
        severity = alert.severity.capitalize()
        fires = f"{severity}, immediately:" if alert.wait == "0m" else f"{severity}, after {alert.wait}:"
        shown = f"The threshold is a line in the {board.label} dashboard, '{panel.title}'."
        lines += [
            f"## {alert.name}",
            "",
            alert.meaning,
            "",
            alert.runbook,
            "",
            shown,
            "",
            fires,
            "",
            f"`{alert.expr}`",
            "",
        ]
    return "\n".join(lines)


def _panel_by_alert() -> dict[str, tuple[Dashboard, int, Panel]]:
    """Return the dashboard, id and panel that draw the threshold of each alert, by the alert's name."""
    return {
        alert.name: (board, number, panel)
        for board in DASHBOARDS
        for number, panel in board.numbered_panels
        for alert in panel.alerts
    }


def prometheus_rule(runbook_url: str | None = None) -> str:
    """Return the alerts as a PrometheusRule, the object of the Prometheus operator, in YAML.

    With `runbook_url`, the URL of the published RUNBOOK.md, each alert links to its section there.
    """
    rule = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": {"name": "agent-rft"}}
    return _yaml(rule | {"spec": rule_groups(runbook_url)})


def dashboard_files() -> dict[str, str]:
    """Return the JSON of each dashboard by its file name."""
    return {f"{each.name}.json": json.dumps(dashboard_json(each), indent=1) + "\n" for each in DASHBOARDS}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _yaml(value: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(value))  # without shared objects, which would become YAML anchors
    return yaml.safe_dump(plain, sort_keys=False, width=1000)


_COMPOSE = f"""\
# docker compose up -d; dashboards are at http://127.0.0.1:3000 (folder agent-rft), alerts at http://127.0.0.1:9090/alerts
services:
  prometheus:
    image: {PROMETHEUS_IMAGE}
    network_mode: host  # local jobs serve metrics on the loopback interface only
    restart: unless-stopped
    command:
      - --config.file=/etc/prometheus/prometheus.yml
      - --storage.tsdb.retention.time=30d
      - --web.listen-address=127.0.0.1:9090
    volumes:
      - ./prometheus.yml:/etc/prometheus/prometheus.yml:ro
      - ./alerts.yml:/etc/prometheus/alerts.yml:ro
      - prometheus:/prometheus
  grafana:
    image: {GRAFANA_IMAGE}
    network_mode: host
    restart: unless-stopped
    environment:
      GF_SERVER_HTTP_ADDR: 127.0.0.1
      GF_AUTH_ANONYMOUS_ENABLED: "true"
      GF_AUTH_ANONYMOUS_ORG_ROLE: Viewer
    volumes:
      - ./grafana/provisioning:/etc/grafana/provisioning:ro
      - ./grafana/dashboards:/dashboards:ro
      - grafana:/var/lib/grafana
volumes:
  prometheus:
  grafana:
"""

_README = """\
# Prometheus and Grafana for agent-rft

    docker compose up -d      # in this folder; then open http://127.0.0.1:3000, folder agent-rft
    docker compose down       # keeps the data; -v deletes it

Without containers: run `prometheus --config.file=prometheus.yml` in this folder, and Grafana with
`grafana/provisioning` as its provisioning folder. In `grafana/provisioning/dashboards/agent-rft.yml`, set `path` to the
absolute path of `grafana/dashboards`.

With an existing Prometheus: copy `scrape_configs` (`honor_labels: true` keeps our label `job`), add `alerts.yml` as a
rule file, and route the alerts with your Alertmanager. With an existing Grafana: import `grafana/dashboards/*.json`.
RUNBOOK.md describes what to do when an alert fires.
"""
