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

    Attributes:
        nodes: Hosts that run our jobs; None for all nodes that Ray's dashboard lists.
        ray_dashboard_url: URL of Ray's dashboard; None if Prometheus cannot discover nodes there.
        port: Metrics port of our processes on each host.
    """

    nodes: Sequence[str] | None
    ray_dashboard_url: str | None = None
    port: int = DEFAULT_PORT


def prometheus_config(cluster: ScrapeTargets) -> dict[str, Any]:
    """Return the content of prometheus.yml.

    Ray's service discovery lists only the ports that serve Ray's own metrics, and it sets the label `job`. To read our
    metrics, the configuration replaces the port and the label `job` of each listed target.
    """
    discovery = [{"url": f"{cluster.ray_dashboard_url}{RAY_DISCOVERY}", "refresh_interval": "30s"}]
    our_scrape_config: dict[str, Any] = {"job_name": OUR_TARGETS, "honor_labels": True}
    if cluster.nodes is not None:
        our_scrape_config["static_configs"] = [{"targets": [f"{node}:{cluster.port}" for node in cluster.nodes]}]
    else:
        on_our_port = {"source_labels": ["__address__"], "regex": r"(.+):\d+", "replacement": f"${{1}}:{cluster.port}"}
        our_scrape_config["http_sd_configs"] = discovery
        our_scrape_config["relabel_configs"] = [
            on_our_port | {"target_label": "__address__"},
            {"target_label": "job", "replacement": OUR_TARGETS},
        ]
    relabel = [{"target_label": "job", "replacement": RAY_TARGETS}]
    ray_scrape_config = {"job_name": RAY_TARGETS, "http_sd_configs": discovery, "relabel_configs": relabel}
    return {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [our_scrape_config]
        if cluster.ray_dashboard_url is None
        else [our_scrape_config, ray_scrape_config],
    }


def write_monitoring(out: Path, cluster: ScrapeTargets, runbook_url: str | None = None) -> None:
    """Write the configuration of a Prometheus and a Grafana that watch this cluster, replacing existing files."""
    _write(out / "prometheus.yml", _yaml(prometheus_config(cluster)))
    _write(out / "alerts.yml", _yaml(rule_groups(runbook_url)))
    _write(out / RUNBOOK, make_runbook())
    _write(out / "docker-compose.yml", _COMPOSE)
    _write(out / "README.md", _README)
    data_source: dict[str, Any] = {"name": "Prometheus", "type": "prometheus", "access": "proxy", "isDefault": True}
    data_source |= {"url": "http://127.0.0.1:9090", "jsonData": {"timeInterval": f"{SCRAPE_S}s"}}
    provider = {"name": "agent-rft", "folder": "agent-rft", "type": "file", "options": {"path": "/dashboards"}}
    provisioning = out / "grafana" / "provisioning"
    _write(provisioning / "datasources" / "prometheus.yml", _yaml({"apiVersion": 1, "datasources": [data_source]}))
    _write(provisioning / "dashboards" / "agent-rft.yml", _yaml({"apiVersion": 1, "providers": [provider]}))
    for name, text in dashboard_files().items():
        _write(out / "grafana" / "dashboards" / name, text)


def rule_groups(runbook_url: str | None = None) -> dict[str, Any]:
    """Return the content of Prometheus's rule file, which is also the `spec` of a PrometheusRule.

    The annotations that link an alert to its panel are described here:
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
                "for": alert.pending_period,
                "labels": {"severity": alert.severity},
                "annotations": texts,
            }
        )
    return {"groups": [{"name": "agent-rft", "rules": rules}]}


def make_runbook() -> str:
    """Return the text of RUNBOOK.md. Each alert has a section, to which the alert's `runbook_url` links."""
    lines = ["# Alert runbook", "", "Generated from `cluster/observability/alerts.py`.", ""]
    panels = _panel_by_alert()
    for alert in ALERTS:
        board, _, panel = panels[alert.name]
        severity = alert.severity.capitalize()
        fires = (
            f"{severity}, immediately:"
            if alert.pending_period == "0m"
            else f"{severity}, after {alert.pending_period}:"
        )
        shown = f"The panel '{panel.title}' of the {board.label} dashboard draws the threshold as a line."
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
    """Map each alert's name to the panel that draws the alert's threshold, as (dashboard, panel id, panel)."""
    return {
        alert.name: (board, number, panel)
        for board in DASHBOARDS
        for number, panel in board.numbered_panels
        for alert in panel.alerts
    }


def prometheus_rule(runbook_url: str | None = None) -> str:
    """Return the alerts as a PrometheusRule, a resource of the Prometheus operator for Kubernetes, in YAML.

    With `runbook_url`, the URL of the published RUNBOOK.md, each alert links to its section there.
    """
    rule = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": {"name": "agent-rft"}}
    return _yaml(rule | {"spec": rule_groups(runbook_url)})


def dashboard_files() -> dict[str, str]:
    """Return the JSON of all dashboards, by file name."""
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
