"""The pods' privileges, the network policies, and the protection of training from evictions."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.contracts.manifests import (
    CLUSTERS,
    K8S,
    OVERLAYS,
    cluster_spec,
    containers,
    matches,
    of_kind,
    one,
    pod_specs,
    quantity,
    ray_pods,
)

METADATA = ipaddress.ip_address("169.254.169.254")

overlays = pytest.mark.parametrize("overlay", OVERLAYS)


@overlays
def test_pods_meet_the_restricted_security_standard(overlay: str) -> None:
    assert one(overlay, "Namespace")["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    user = re.findall(r"^USER (\d+):(\d+)$", (K8S / "Dockerfile").read_text(), re.MULTILINE)[-1]
    for name, _, spec in pod_specs(overlay):
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert (str(context["runAsUser"]), str(context["runAsGroup"])) == user
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert all(set(volume) & {"emptyDir", "persistentVolumeClaim", "configMap"} for volume in spec["volumes"])
        if not name.endswith("head"):  # the head needs the autoscaler's service account
            assert spec["automountServiceAccountToken"] is False
        for container in containers(spec):
            check_restricted(container["securityContext"])
            resources = container["resources"]
            assert quantity(resources["limits"]["memory"]) >= quantity(resources["requests"]["memory"])
    for kind in CLUSTERS:
        check_restricted(cluster_spec(one(overlay, kind))["autoscalerOptions"]["securityContext"])


def check_restricted(context: Mapping[str, Any]) -> None:
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}


@overlays
def test_ray_requires_a_token_and_only_the_server_gets_its_secrets(overlay: str) -> None:
    for kind in CLUSTERS:
        spec = cluster_spec(one(overlay, kind))
        assert spec["authOptions"] == {"mode": "token"}
        for pod in ray_pods(spec):
            names = [source["secretRef"]["name"] for source in pod.container["envFrom"]]
            assert names == ["agent-rft", "agent-rft-server"][: 1 + (kind == "RayService")]


@overlays
def test_network_policies_deny_all_traffic_that_is_not_listed(overlay: str) -> None:
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind(overlay, "NetworkPolicy")}
    assert policies["deny-all"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    labels = [labels for _, labels, _ in pod_specs(overlay)]
    for name, policy in policies.items():
        selector = policy["podSelector"].get("matchLabels", {})
        assert any(matches(selector, of) for of in labels), name
        for rule in policy.get("egress", []):
            assert rule["to"], f"{name}: egress to anywhere"
            for block in (peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer):
                excepted = [ipaddress.ip_network(text) for text in block.get("except", [])]
                reached = METADATA in ipaddress.ip_network(block["cidr"])
                assert not reached or any(METADATA in network for network in excepted), name
        for rule in policy.get("ingress", []):
            assert rule["from"], f"{name}: ingress from anywhere"
    for name in ("from-ingress", "from-kuberay"):
        allowed = {port["port"] for rule in policies[name]["ingress"] for port in rule["ports"]}
        assert allowed == ({8000} if name == "from-ingress" else {8000, 8265})
    (dns,) = policies["to-dns"]["egress"]
    assert {(port["port"], port["protocol"]) for port in dns["ports"]} == {(53, "UDP"), (53, "TCP")}


@overlays
def test_draining_a_node_evicts_no_training(overlay: str) -> None:
    budgets = {budget["metadata"]["name"]: budget["spec"] for budget in of_kind(overlay, "PodDisruptionBudget")}
    groups = {(pod.group, tuple(pod.labels.items())) for pod in ray_pods(cluster_spec(one(overlay, "RayJob")))}
    for group, labels in groups:
        (budget,) = [b for b in budgets.values() if matches(b["selector"]["matchLabels"], dict(labels))]
        assert budget["minAvailable"] == (1 if group == "engine" else 1000)
