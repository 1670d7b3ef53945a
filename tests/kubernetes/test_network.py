"""Each rule of each NetworkPolicy by a connection that passes and one that does not, between real pods."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pytest
from kr8s.objects import Endpoints, Namespace, Pod

from tests.kubernetes.cluster import IMAGE, NAMESPACE, Cluster, Object, listed, name_servers

pytestmark = pytest.mark.timeout(900)
OTHER, METADATA = "agent-rft-other", "169.254.169.254"
LISTENS = """
import socket, sys, threading
def serve(port):
    listener = socket.create_server(("0.0.0.0", port))
    while True:
        listener.accept()[0].close()
for port in sys.argv[1:]:
    threading.Thread(target=serve, args=(int(port),)).start()
"""
CONNECTS = """
import socket, sys
for target in sys.argv[1:]:
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
        print(target, "passes", flush=True)
    except OSError as error:
        print(target, "does not pass:", error, flush=True)
"""
PORTS = (443, 5432, 6379, 8000, 8001, 8080, 8265, 9464, 20000)


class Places(NamedTuple):
    """Pods that listen on PORTS, by their role; `public` is the address on port 443 outside of the cluster."""

    pods: Mapping[str, Any]
    public: str
    api_server: str

    def address(self, target: str) -> str:
        """HOST:PORT of a target such as `head:6379`."""
        role, _, port = target.partition(":")
        fixed = {"public": self.public, "kubernetes": self.api_server, "metadata": METADATA}
        host = fixed[role] if role in fixed else self.pods[role].status.podIP
        return f"{host}:{port}"


ROLES: dict[str, tuple[str, dict[str, str]]] = {
    "ray": (NAMESPACE, {"app.kubernetes.io/name": "agent-rft", "app.kubernetes.io/component": "engine"}),
    "ray 2": (NAMESPACE, {"app.kubernetes.io/name": "agent-rft", "app.kubernetes.io/component": "learner"}),
    "head": (NAMESPACE, {"app.kubernetes.io/name": "agent-rft", "app.kubernetes.io/component": "head"}),
    "graders": (NAMESPACE, {"app.kubernetes.io/name": "agent-rft-graders"}),
    "unnamed": (NAMESPACE, {}),
    "tool": (OTHER, {"agent-rft/endpoint": "true"}),
    "stranger": (OTHER, {}),
    "operator": (OTHER, {"app.kubernetes.io/name": "kuberay-operator"}),
}

RULES = {
    "ray": ("ray > ray 2:20000", "unnamed > ray 2:20000"),
    "ray (out)": ("ray > head:6379", "ray > unnamed:6379"),
    "from-kuberay": ("operator > head:8265", "stranger > head:8265"),
    "from-kuberay (Serve)": ("operator > head:8000", "operator > head:6379"),
    "to-dns": ("unnamed > dns:53", "unnamed > dns:8080"),
    "to-endpoints (labeled pods)": ("ray > tool:8001", "ray > stranger:8001"),
    "to-endpoints (public)": ("ray > public:443", "ray > public:8443"),
    "to-endpoints (the metadata address)": ("ray > public:443", "ray > metadata:443"),
    "to-kubernetes": ("head > kubernetes:6443", "ray > kubernetes:6443"),
    "ledger": ("ray > ledger:8001", "unnamed > ledger:8001"),
    "python-graders": ("graders > head:6379", "graders > head:8265"),
    "python-graders (in)": ("ray > graders:20000", "ray > graders:8080"),
    "ray-and-python-graders": ("graders > ray:20000", "graders > ray:9464"),
    "python-graders (Internet)": ("graders > dns:53", "graders > public:443"),
    "python-graders (tools)": ("graders > head:20000", "graders > tool:8001"),
}
"""For each rule a connection that passes, and one that does not."""
WITHOUT_POLICIES = (
    "stranger > public:8443",
    "stranger > metadata:443",
    "stranger > tool:8001",
    "stranger > kubernetes:6443",
)
"""Connections that pass where no policy applies, so that it is the policies that deny them elsewhere."""


@pytest.fixture(scope="module")
def places(applied: Cluster) -> Iterator[Places]:
    """Pods with the labels of all roles, which listen on the same ports."""
    api = applied.api
    Namespace({"metadata": {"name": OTHER}}, api=api).create()
    pods: dict[str, Any] = {}
    for role, (namespace, labels) in ROLES.items():
        name = f"network-{role.replace(' ', '-')}"
        pods[role] = Pod(pod(name, namespace, labels), api=api)
        pods[role].create()
    dns, *_ = name_servers(api)
    ledger, *_ = listed(Pod, api, namespace=NAMESPACE, label_selector={"app.kubernetes.io/name": "ledger"})
    applied.until("all pods listen", lambda: all(listens(found) for found in pods.values()), 300)
    try:
        with listener(applied.means.public_address, (443, 8443)), listener(METADATA, (443,)):
            yield Places(pods | {"dns": dns, "ledger": ledger}, applied.means.public_address, api_server(applied))
    finally:
        for found in pods.values():
            found.delete(grace_period=0)
        Namespace({"metadata": {"name": OTHER}}, api=api).delete()


def test_each_rule_allows_what_it_names_and_nothing_else(applied: Cluster, places: Places) -> None:
    passing = [passes for passes, _ in RULES.values()] + list(WITHOUT_POLICIES)
    failing = [fails for _, fails in RULES.values()]
    passed = connected(applied, places, [*passing, *failing])
    assert {connection for connection in passing if connection not in passed} == set()
    assert {connection for connection in failing if connection in passed} == set()


def test_nothing_in_the_cluster_reaches_a_cluster_without_its_token(applied: Cluster, places: Places) -> None:
    """Ray's own ports are open to all pods of the name agent-rft: another cluster's token is what keeps them out."""
    head = applied.head(applied.cluster_of_service())
    assert head is not None
    address = f"{head.status.podIP}:6379"
    command = ["ray", "health-check", "--address", address]
    with_token = applied.run(head, *command, check=False)
    without = applied.run(
        places.pods["ray"], "env", "RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN=wrong", *command, check=False
    )
    assert with_token == ""
    assert "oken" in without


def connected(cluster: Cluster, places: Places, connections: list[str]) -> set[str]:
    """Those of the connections that pass."""
    passed = set()
    for role in {connection.partition(" > ")[0] for connection in connections}:
        own = [connection for connection in connections if connection.startswith(f"{role} > ")]
        addresses = {connection: places.address(connection.partition(" > ")[2]) for connection in own}
        output = cluster.run(places.pods[role], "python", "-c", CONNECTS, *sorted(set(addresses.values())))
        answers = dict(line.split(" ", 1) for line in output.splitlines())
        passed |= {connection for connection, address in addresses.items() if answers[address] == "passes"}
    return passed


def pod(name: str, namespace: str, labels: Mapping[str, str]) -> Object:
    """A pod that listens on PORTS and has nothing that Pod Security or our admission policy refuses."""
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                **{"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
                "sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}],
            },
            "containers": [
                {
                    "name": "listens",
                    "image": IMAGE,
                    "command": ["python", "-c", LISTENS, *map(str, PORTS)],
                    "resources": {"requests": {"cpu": "10m"}},
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }


def listens(pod: Any) -> bool:
    pod.refresh()
    return bool(pod.ready())


@contextmanager
def listener(address: str, ports: Sequence[int]) -> Iterator[None]:
    """Listen at an address if this machine has it; otherwise something else does."""
    try:
        sockets = [socket.create_server((address, port)) for port in ports]
    except OSError:
        yield
        return
    for found in sockets:
        threading.Thread(target=_accept, args=(found,), daemon=True).start()
    try:
        yield
    finally:
        for found in sockets:
            found.shutdown(socket.SHUT_RDWR)
            found.close()


def _accept(listening: socket.socket) -> None:
    with suppress(OSError):
        while True:
            listening.accept()[0].close()


def api_server(cluster: Cluster) -> str:
    """HOST of the API server, as pods reach it."""
    found = Endpoints.get("kubernetes", namespace="default", api=cluster.api)
    return str(found.raw["subsets"][0]["addresses"][0]["ip"])
