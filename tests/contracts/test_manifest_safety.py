"""The pods' privileges, the network policies, and the protection of training from evictions."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

import pytest

from agent_rft.actors.runtime.grader_nodes import LABEL, PYTHON_GRADER
from tests.contracts.manifests import (
    CILIUM,
    CLUSTERS,
    GRADERS,
    K8S,
    OVERLAYS,
    PYTHON_GRADERS,
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
NODE_DNS = "169.254.20.10/32"
"""The usual address of a DNS cache on each node."""

overlays = pytest.mark.parametrize("overlay", OVERLAYS)


@overlays
def test_pods_meet_the_restricted_security_standard(overlay: str) -> None:
    enforced = one(overlay, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert enforced == ("privileged" if overlay == GRADERS else "restricted")
    assert bool(of_kind(overlay, "ValidatingAdmissionPolicy")) == (overlay == GRADERS)
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
            grades = name.endswith(PYTHON_GRADERS) and container in spec["containers"]
            free = {"seccompProfile", "appArmorProfile"} if grades else set()
            assert {"seccompProfile", "appArmorProfile", "procMount"} & set(container["securityContext"]) == free
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
            if pod.group == PYTHON_GRADERS:
                continue
            names = [source["secretRef"]["name"] for source in pod.container["envFrom"]]
            assert names == ["agent-rft", "agent-rft-server"][: 1 + (kind == "RayService")]


@pytest.mark.parametrize("kind", CLUSTERS)
def test_graders_pods_have_no_secret_no_volume_and_only_what_ray_places_there_for_graders(kind: str) -> None:
    (pod,) = [pod for pod in ray_pods(cluster_spec(one(GRADERS, kind))) if pod.group == PYTHON_GRADERS]
    assert "envFrom" not in pod.container
    assert all(set(variable) == {"name", "value"} for variable in pod.container["env"])  # none from a Secret
    assert all("emptyDir" in volume for volume in pod.spec["volumes"])
    assert pod.spec["automountServiceAccountToken"] is False
    assert set(pod.resources) == {"CPU", PYTHON_GRADER}
    assert int(pod.resources[PYTHON_GRADER]) > 1
    assert pod.ray_labels == {LABEL: "true"}  # keeps all actors away that need no cores; others find none
    assert pod.cores == 0
    assert "readinessProbe" not in pod.container  # KubeRay's keeps it out of the endpoints of the RayService


def test_graders_pods_reach_rays_ports_and_nothing_else() -> None:
    """The policies that select them, by what each lets out and in."""
    labels = next(labels for name, labels, _ in pod_specs(GRADERS) if name.endswith(PYTHON_GRADERS))
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind(GRADERS, "NetworkPolicy")}
    selecting = {
        name for name, policy in policies.items() if matches(policy["podSelector"].get("matchLabels", {}), labels)
    }
    assert selecting == {"deny-all", "to-dns", PYTHON_GRADERS}
    own, theirs = policies[PYTHON_GRADERS], policies["ray-and-python-graders"]
    ray_pod = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "agent-rft"}}}
    for policy, peer in ((own, ray_pod), (theirs, {"podSelector": own["podSelector"]})):
        for direction, other in (("egress", "to"), ("ingress", "from")):
            (rule,) = policy[direction]
            assert rule[other] == [peer]
    assert theirs["podSelector"] == ray_pod["podSelector"]
    for rule in (*own["egress"], *theirs["ingress"]):
        ranges = [range(port["port"], port.get("endPort", port["port"]) + 1) for port in rule["ports"]]
        for closed in (8000, 8080, 8265, 9464):
            assert not any(closed in ports for ports in ranges)
    assert own["egress"][0]["ports"] == theirs["ingress"][0]["ports"]
    assert own["ingress"][0]["ports"] == theirs["egress"][0]["ports"]


FREE = "variables.grader ||"
CONTROLS = {
    "host namespaces": ({"hostNetwork", "hostPID", "hostIPC"}, "pod"),
    "windows host processes": ({"hostProcess"}, "holders"),
    "privileged containers": ({"privileged"}, "containers"),
    "privilege escalation": ({"allowPrivilegeEscalation"}, "containers"),
    "capabilities": ({"drop", "add", '"ALL"', '"NET_BIND_SERVICE"'}, "containers"),
    "volume types": ({"volumes", "v.configMap", "v.secret", "v.persistentVolumeClaim"}, "pod"),
    "host ports": ({"hostPort"}, "containers"),
    "host of probes and lifecycle hooks": (
        {"livenessProbe", "readinessProbe", "startupProbe", "postStart", "preStop", "httpGet", "tcpSocket"},
        "containers",
    ),
    "runAsNonRoot": ({"runAsNonRoot"}, "containers"),
    "runAsUser": ({"runAsUser"}, "holders"),
    "SELinux": ({"seLinuxOptions.?type", "seLinuxOptions.?user", "seLinuxOptions.?role"}, "holders"),
    "/proc": ({"procMount"}, "containers"),
    "sysctls": ({"sysctls"}, "pod"),
    "seccomp": ({"seccompProfile"}, "containers"),
    "AppArmor": ({"appArmorProfile", "container.apparmor.security.beta.kubernetes.io/"}, "holders"),
}
"""The controls of Pod Security's `restricted`, those of `baseline` included: words of the fields that each restricts,
and which objects have them."""


def test_a_policy_holds_every_pod_to_each_control_of_restricted() -> None:
    """By its structure: its expressions are evaluated by a Kubernetes API server only, which the tests do not have."""
    policy, binding = (one(GRADERS, f"ValidatingAdmissionPolicy{kind}") for kind in ("", "Binding"))
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert binding["spec"]["validationActions"] == ["Deny"]
    (label,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchLabels"].items()
    assert label == ("kubernetes.io/metadata.name", one(GRADERS, "Namespace")["metadata"]["name"])
    spec = policy["spec"]
    assert spec["failurePolicy"] == "Fail"
    assert "matchConditions" not in spec
    rules = {(*rule["operations"], *rule["resources"]) for rule in spec["matchConstraints"]["resourceRules"]}
    assert rules == {("CREATE", "pods"), ("UPDATE", "pods/ephemeralcontainers")}

    expressions = {found["message"].split(":")[0]: found["expression"] for found in spec["validations"]}
    *controls, no_secrets = expressions
    assert controls == list(CONTROLS)
    for control, (words, where) in CONTROLS.items():
        text = expressions[control]
        assert all(word in text for word in words), control
        assert ("object.spec." if where == "pod" else f"variables.{where}.all(") in text
        assert text.startswith(FREE) == (control in ("seccomp", "AppArmor")), control
    assert expressions[no_secrets].startswith("!variables.grader ||")
    variables = {found["name"]: found["expression"] for found in spec["variables"]}
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        assert kind in variables["containers"]
    assert variables["holders"] == "[object.spec] + variables.containers"


def test_no_label_makes_a_pod_a_graders_pod() -> None:
    """It must have been created by KubeRay's operator, for the group of the manifests."""
    spec = one(GRADERS, "ValidatingAdmissionPolicy")["spec"]
    (grader,) = [found["expression"] for found in spec["variables"] if found["name"] == "grader"]
    user, *labels = re.findall(r'(?:\S+) == "([\w:-]+)"', grader)
    assert grader.count("&&") == 2 and "||" not in grader
    assert grader.startswith("request.userInfo.username ==")
    assert user == "system:serviceaccount:kuberay-system:kuberay-operator"
    assert labels == [PYTHON_GRADERS, "agent-rft-graders"]
    assert "--namespace kuberay-system" in (K8S.parent / "docs/kubernetes.md").read_text()


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
    for name, ports in {"from-gateway": {8000}, "from-kuberay": {8000, 8265}}.items():
        for rule in policies[name]["ingress"] if name in policies else []:
            assert {port["port"] for port in rule["ports"]} == ports
    assert ("from-gateway" in policies) == bool(of_kind(overlay, "Gateway"))


@overlays
def test_a_policy_that_allows_dns_allows_the_clusters_and_that_of_the_node(overlay: str) -> None:
    """A cache on each node is in the node's network: a rule for kube-system's pods does not match it."""
    both = {(53, "UDP"), (53, "TCP")}
    rules = [
        rule
        for policy in of_kind(overlay, "NetworkPolicy")
        for rule in policy["spec"].get("egress", [])
        if any(port["port"] == 53 for port in rule.get("ports", []))
    ]
    assert rules
    for rule in rules:
        assert {(port["port"], port["protocol"]) for port in rule["ports"]} == both
        assert {"ipBlock": {"cidr": NODE_DNS}} in rule["to"]
        assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}} in rule["to"]


def test_with_cilium_the_head_reaches_the_kubernetes_api_and_all_pods_the_nodes_dns() -> None:
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind(CILIUM, "CiliumNetworkPolicy")}
    head = next(ray_pods(cluster_spec(one(CILIUM, "RayJob"))))
    others = [labels for name, labels, _ in pod_specs(CILIUM) if not name.endswith("head")]
    to_api = policies.pop("to-kubernetes")
    assert to_api["egress"] == [{"toEntities": ["kube-apiserver"]}]
    selector = to_api["endpointSelector"]["matchLabels"]
    assert matches(selector, head.labels) and not any(matches(selector, labels) for labels in others)
    (rule,) = policies.pop("to-node-dns")["egress"]
    assert rule["toEntities"] == ["host"]
    assert rule["toPorts"] == [{"ports": [{"port": "53", "protocol": name} for name in ("UDP", "TCP")]}]
    assert not policies


@overlays
def test_a_drain_takes_engines_one_at_a_time_and_is_never_blocked(overlay: str) -> None:
    """With less than the engines that a cluster starts with, Kubernetes would forbid every eviction."""
    budgets = [budget["spec"] for budget in of_kind(overlay, "PodDisruptionBudget")]
    assert bool(budgets) == overlay.startswith("production")
    for budget in budgets:
        assert set(budget) == {"minAvailable", "selector"}  # KubeRay's pods allow no other kind
        selected = [
            (kind, pod)
            for kind in CLUSTERS
            for pod in ray_pods(cluster_spec(one(overlay, kind)))
            if matches(budget["selector"]["matchLabels"], pod.labels)
        ]
        ((kind, pod),) = selected
        assert (kind, pod.group) == ("RayJob", "engine")
        assert budget["minAvailable"] == pod.replicas - 1 > 0
