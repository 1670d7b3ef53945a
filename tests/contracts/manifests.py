"""The manifests as kustomize renders them, and what KubeRay makes of them."""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.paths import ROOT

K8S = ROOT / "k8s"
OVERLAYS = ("laptop", "gpu", "production")
KUBECTL = Path(sys.executable).with_name("kubectl")
CLUSTERS = {"RayCluster": "spec", "RayJob": "spec.rayClusterSpec", "RayService": "spec.rayClusterConfig"}
JOB_SECRETS = ("LEDGER_TOKEN", "TOOL_KEY")
"""Variables that the overlays' job files name."""
AGENT_PORT, METRICS_PORT, GCS_PORT = 52365, 8080, 6379

Object = dict[str, Any]


@cache
def rendered(overlay: str) -> Sequence[Object]:
    command = [KUBECTL, "kustomize", K8S / "overlays" / overlay]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return list(yaml.safe_load_all(text))


def of_kind(overlay: str, kind: str) -> list[Object]:
    return [found for found in rendered(overlay) if found["kind"] == kind]


def one(overlay: str, kind: str, name: str | None = None) -> Object:
    (found,) = [o for o in of_kind(overlay, kind) if name is None or o["metadata"]["name"] == name]
    return found


def cluster_spec(owner: Object) -> Object:
    """The cluster spec of a RayCluster, a RayJob or a RayService."""
    for key in CLUSTERS[owner["kind"]].split("."):
        owner = owner[key]
    return owner


def image_environment() -> dict[str, str]:
    """What the Dockerfile says, of both targets."""
    text = (K8S / "Dockerfile").read_text().replace("\\\n", " ")
    found: dict[str, str] = {}
    for line in re.findall(r"^ENV (.+)$", text, re.MULTILINE):
        found |= dict(part.split("=", 1) for part in shlex.split(line))
    return found


@dataclass(frozen=True, slots=True)
class RayPod:
    """A pod of a cluster: `group` is head, engine or learner, `replicas` how many there are at first."""

    group: str
    spec: Object
    labels: Mapping[str, str]
    parameters: Mapping[str, str]
    replicas: int = 1

    @property
    def container(self) -> Object:
        found: Object = self.spec["containers"][0]
        return found

    @property
    def limits(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.container["resources"]["limits"]
        return found

    @property
    def gpus(self) -> int:
        return int(self.limits.get("nvidia.com/gpu", 0))

    def ray_start(self, address: str | None, also: Mapping[str, str]) -> list[str]:
        """The command that KubeRay starts in it, with options that KubeRay gives or leaves to Ray; `address` is the
        head's, for a worker.
        """
        options = {
            **self.parameters,
            "block": "true",
            "metrics-export-port": str(METRICS_PORT),
            "dashboard-agent-listen-port": str(AGENT_PORT),
            "memory": str(quantity(self.limits["memory"])),
        }
        options |= {"num-gpus": str(self.gpus)} if self.gpus else {}
        options |= also
        words = ["--head"] if address is None else [f"--address={address}"]
        words += [f"--{name}" if value == "true" else f"--{name}={value}" for name, value in options.items()]
        return ["/bin/bash", "-c", "--", f"ulimit -n 65536; ray start {shlex.join(words)}"]


def ray_pods(spec: Object) -> Iterator[RayPod]:
    """Yield the pods of a cluster's spec, the head first."""
    head = spec["headGroupSpec"]
    template = head["template"]
    yield RayPod("head", template["spec"], template["metadata"]["labels"], head["rayStartParams"])
    for group in spec["workerGroupSpecs"]:
        template = group["template"]
        yield RayPod(
            group["groupName"],
            template["spec"],
            template["metadata"]["labels"],
            group["rayStartParams"],
            group["replicas"],
        )


def pod_specs(overlay: str) -> Iterator[tuple[str, Mapping[str, str], Object]]:
    """(what it belongs to, labels, spec) of every pod."""
    for found in rendered(overlay):
        name = f"{found['kind']} {found['metadata']['name']}"
        if found["kind"] in CLUSTERS:
            for pod in ray_pods(cluster_spec(found)):
                yield f"{name} {pod.group}", pod.labels, pod.spec
        elif found["kind"] == "Deployment":
            template = found["spec"]["template"]
            yield name, template["metadata"]["labels"], template["spec"]


def containers(spec: Object) -> list[Object]:
    """Those that run before the others too."""
    return [*spec.get("initContainers", []), *spec["containers"]]


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether `matchLabels` choose a pod."""
    return selector.items() <= labels.items()


_UNITS = {"": 1, "m": 0.001, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def quantity(text: str) -> int:
    """Kubernetes' `4Gi` in bytes; `500m` cores are one."""
    match = re.fullmatch(r"([\d.]+)(|m|[KMGT]i)", text)
    assert match is not None, text
    return math.ceil(float(match[1]) * _UNITS[match[2]])
