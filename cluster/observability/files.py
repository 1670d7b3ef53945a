"""The files that Prometheus and Grafana read: for a pair that `docker compose` starts, or for one that is there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from actors.runtime.exporter import DEFAULT_PORT
from cluster.observability.alerts import RUNBOOK, rule_groups, runbook
from cluster.observability.dashboards.endpoints import ENDPOINTS_DASHBOARD
from cluster.observability.dashboards.fleet import FLEET_DASHBOARD
from cluster.observability.dashboards.grafana import dashboard_json
from cluster.observability.dashboards.job import JOB_DASHBOARD
from cluster.observability.dashboards.learner import LEARNER_DASHBOARD

DASHBOARDS = (JOB_DASHBOARD, ENDPOINTS_DASHBOARD, FLEET_DASHBOARD, LEARNER_DASHBOARD)
PROMETHEUS_IMAGE, GRAFANA_IMAGE = "prom/prometheus:v3.5.0", "grafana/grafana:12.1.0"
SCRAPE_S = 15
RAY_DISCOVERY = "/api/prometheus/sd"


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is scraped. `ray` is the URL of its dashboard, which knows its nodes as they come and go (None: it tells
    nobody); `nodes` are those that run our jobs (None: those that `ray` knows).
    """

    nodes: Sequence[str] | None
    ray: str | None = None
    port: int = DEFAULT_PORT


def prometheus_config(cluster: Cluster) -> dict[str, Any]:
    """prometheus.yml. Ray says where its own metrics are, one address and more a node; ours are beside them."""
    discovery = [{"url": f"{cluster.ray}{RAY_DISCOVERY}", "refresh_interval": "30s"}]
    ours: dict[str, Any] = {"job_name": "agent-rft", "honor_labels": True}
    if cluster.nodes is not None:
        ours["static_configs"] = [{"targets": [f"{node}:{cluster.port}" for node in cluster.nodes]}]
    else:
        here = {"source_labels": ["__address__"], "regex": r"(.+):\d+", "replacement": f"${{1}}:{cluster.port}"}
        ours["http_sd_configs"] = discovery
        ours["relabel_configs"] = [
            here | {"target_label": "__address__"},
            {"target_label": "job", "replacement": "agent-rft"},
        ]
    rays = [] if cluster.ray is None else [{"job_name": "ray", "http_sd_configs": discovery}]
    return {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [ours, *rays],
    }


def write_pair(out: Path, cluster: Cluster) -> None:
    """Everything for a Prometheus and a Grafana of this cluster; what is there is replaced."""
    _write(out / "prometheus.yml", _yaml(prometheus_config(cluster)))
    _write(out / "alerts.yml", _yaml(rule_groups()))
    _write(out / RUNBOOK, runbook())
    _write(out / "docker-compose.yml", _COMPOSE)
    _write(out / "README.md", _README)
    source: dict[str, Any] = {"name": "Prometheus", "type": "prometheus", "access": "proxy", "isDefault": True}
    source |= {"url": "http://127.0.0.1:9090", "jsonData": {"timeInterval": f"{SCRAPE_S}s"}}
    provider = {"name": "agent-rft", "folder": "agent-rft", "type": "file", "options": {"path": "/dashboards"}}
    provisioning = out / "grafana" / "provisioning"
    _write(provisioning / "datasources" / "prometheus.yml", _yaml({"apiVersion": 1, "datasources": [source]}))
    _write(provisioning / "dashboards" / "agent-rft.yml", _yaml({"apiVersion": 1, "providers": [provider]}))
    for name, text in _dashboard_files().items():
        _write(out / "grafana" / "dashboards" / name, text)


def kubernetes_manifest() -> str:
    """The alerts as a PrometheusRule and the dashboards as a ConfigMap, in one YAML stream.

    The rule is for the Prometheus operator, the label `grafana_dashboard` for the sidecar of Grafana's Helm chart.
    """
    rule = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": {"name": "agent-rft"}}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "agent-rft-dashboards", "labels": {"grafana_dashboard": "1"}},
        "data": _dashboard_files(),
    }
    return "---\n".join([_yaml(rule | {"spec": rule_groups()}), _yaml(config_map)])


def _dashboard_files() -> dict[str, str]:
    """Maps each dashboard's file name to its JSON."""
    return {f"{each.name}.json": json.dumps(dashboard_json(each), indent=1) + "\n" for each in DASHBOARDS}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _yaml(value: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(value))  # else what stands in it twice becomes an anchor
    return yaml.safe_dump(plain, sort_keys=False, width=1000)


_COMPOSE = f"""\
# docker compose up -d, then http://127.0.0.1:3000 (dashboards, folder agent-rft) and http://127.0.0.1:9090/alerts
services:
  prometheus:
    image: {PROMETHEUS_IMAGE}
    network_mode: host  # metrics of local jobs are on the loopback only
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

    docker compose up -d      # here; then http://127.0.0.1:3000, folder agent-rft
    docker compose down       # keeps the data; -v removes it

Without containers: `prometheus --config.file=prometheus.yml` here, and Grafana with `grafana/provisioning` as its
provisioning folder (the path in `dashboards/agent-rft.yml` is that of `grafana/dashboards`).

For a Prometheus that is there: take over `scrape_configs` (`honor_labels: true` keeps our label `job`) and `alerts.yml`
as a rule file; route alerts with its Alertmanager. For a Grafana that is there: import `grafana/dashboards/*.json`.
RUNBOOK.md says what to do when an alert fires.
"""
