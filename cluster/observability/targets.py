"""What there is to observe: the nodes of a running cluster, or this machine."""

from __future__ import annotations

import os

import ray

from actors.runtime.exporter import metrics_port
from cluster.observability.files import Cluster
from cluster.ray_cluster.session import dashboard_address, is_local, ray_session


def observed(address: str | None) -> Cluster:
    """The cluster at `address`; without one, jobs of this machine.

    Raises:
        InvalidJob: nothing answers there.
    """
    port = metrics_port()
    if address is None:
        return Cluster(["127.0.0.1"], port=port)
    with ray_session(address):
        nodes = sorted({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]})
        dashboard = dashboard_address()
    # A cluster with tokens would want one of Prometheus too: then the nodes that are there now have to do.
    tells = dashboard is not None and os.environ.get("RAY_AUTH_MODE") != "token"
    url = f"http://{dashboard}" if tells else None
    if is_local(address):
        return Cluster(["127.0.0.1"], url, port)
    return Cluster(None if tells else nodes, url, port)
