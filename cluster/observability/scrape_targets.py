"""Discovery of scrape targets: the nodes of a running Ray cluster, or this host."""

from __future__ import annotations

import os

import ray

from agent_rft.actors.runtime.telemetry.exporter import metrics_port
from agent_rft.cluster.observability.monitoring_files import ScrapeTargets
from agent_rft.cluster.ray_cluster.ray_internals import dashboard_address
from agent_rft.cluster.ray_cluster.ray_session import is_local_address, ray_session


def find_scrape_targets(address: str | None) -> ScrapeTargets:
    """Return the scrape targets of the Ray cluster at `address`, or of this host if `address` is None.

    Raises:
        InvalidJob: No cluster answers at `address`.
    """
    port = metrics_port()
    if address is None:
        return ScrapeTargets(["127.0.0.1"], port=port)
    with ray_session(address):
        nodes = sorted({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]})
        dashboard = dashboard_address()
    # With token authentication Prometheus would need a token for the discovery too, so list the current nodes.
    discoverable = dashboard is not None and os.environ.get("RAY_AUTH_MODE") != "token"
    url = f"http://{dashboard}" if discoverable else None
    if is_local_address(address):
        return ScrapeTargets(["127.0.0.1"], url, port)
    return ScrapeTargets(None if discoverable else nodes, url, port)
