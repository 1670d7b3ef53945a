"""The manifests as kustomize renders them, and the Ray pods that KubeRay creates from them."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tests.support.paths import ROOT

K8S = ROOT / "k8s"
GRADERS, CILIUM = "production with graders", "laptop with cilium"
OVERLAYS = ("laptop", "gpu", "production", GRADERS, CILIUM)
"""The folders, and some with an optional component, as docs/kubernetes.md says."""
PYTHON_GRADERS = "python-graders"
"""The worker group of the component."""
KUBECTL = Path(sys.executable).with_name("kubectl")
CLUSTERS = {"RayCluster": "spec", "RayJob": "spec.rayClusterSpec", "RayService": "spec.rayClusterConfig"}
JOB_SECRETS = ("LEDGER_TOKEN", "TOOL_KEY")
"""Variables that the overlays' job files refer to."""
AGENT_PORT, METRICS_PORT, GCS_PORT = 52365, 8080, 6379

Object = dict[str, Any]


@cache
def tracked_files() -> frozenset[str]:
    """The files below k8s/ that are in git, by their paths relative to k8s/."""
    command = ["git", "ls-files", "-z"]
    names = subprocess.run(command, cwd=K8S, check=True, capture_output=True, text=True).stdout
    return frozenset(names.rstrip("\0").split("\0"))


@cache
def rendered(overlay: str) -> Sequence[Object]:
    """The overlay's objects, built from a copy of k8s/ that has only the files in git, as a clone does."""
    with TemporaryDirectory() as temporary:
        for name in tracked_files():
            copied = Path(temporary, name)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(K8S / name, copied)
        folder = Path(temporary, "overlays", overlay.split()[0])
        if overlay == GRADERS:
            edit(folder / "kustomization.yaml", "../../copies", "../../graders, ../../copies")
            edit(folder / "agent-rft.yaml", "wait_for_nodes_s:", "python_grader_nodes: true\nwait_for_nodes_s:")
        if overlay == CILIUM:
            edit(folder / "kustomization.yaml", "../../copies", "../../cilium, ../../copies")
        command = [str(KUBECTL), "kustomize", str(folder)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return list(yaml.safe_load_all(text))


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def of_kind(overlay: str, kind: str) -> list[Object]:
    return [found for found in rendered(overlay) if found["kind"] == kind]


def one(overlay: str, kind: str, name: str | None = None) -> Object:
    (found,) = [o for o in of_kind(overlay, kind) if name is None or o["metadata"]["name"] == name]
    return found


def cluster_spec(owner: Object) -> Object:
    """The cluster spec inside a RayCluster, a RayJob or a RayService."""
    for key in CLUSTERS[owner["kind"]].split("."):
        owner = owner[key]
    return owner


def image_environment() -> dict[str, str]:
    """The environment variables that the Dockerfile sets, for both targets."""
    text = (K8S / "Dockerfile").read_text().replace("\\\n", " ")
    found: dict[str, str] = {}
    for line in re.findall(r"^ENV (.+)$", text, re.MULTILINE):
        found |= dict(part.split("=", 1) for part in shlex.split(line))
    return found


@dataclass(frozen=True, slots=True)
class RayPod:
    """A pod of a cluster: `group` is head, engine, learner or python-graders, `replicas` the initial number of pods.

    `max_replicas` is the number up to which the autoscaler adds pods.

    `resources` and `ray_labels` are the node's custom resources and labels in Ray.
    """

    group: str
    spec: Object
    labels: Mapping[str, str]
    parameters: Mapping[str, str]
    replicas: int = 1
    max_replicas: int = 1
    resources: Mapping[str, str] = field(default_factory=dict)
    ray_labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def container(self) -> Object:
        found: Object = self.spec["containers"][0]
        return found

    @property
    def limits(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.container["resources"]["limits"]
        return found

    @property
    def cores(self) -> int:
        """The cores that Ray may give to actors and tasks in this pod."""
        return int(self.resources.get("CPU") or self.parameters["num-cpus"])

    @property
    def gpus(self) -> int:
        return int(self.limits.get("nvidia.com/gpu", 0))

    def ray_start(self, address: str | None, extra: Mapping[str, str]) -> list[str]:
        """The container command as KubeRay builds it, with the options `extra` added.

        `address` is the head's address for a worker, and None for the head.
        """
        options = {
            **self.parameters,
            "block": "true",
            "metrics-export-port": str(METRICS_PORT),
            "dashboard-agent-listen-port": str(AGENT_PORT),
            "memory": str(quantity(self.limits["memory"])),
        }
        options |= {"num-gpus": str(self.gpus)} if self.gpus else {}
        custom = {name: float(amount) for name, amount in self.resources.items() if name != "CPU"}
        if custom:
            options |= {"num-cpus": str(self.cores), "resources": json.dumps(custom)}
        if self.ray_labels:
            options["labels"] = ",".join(f"{name}={value}" for name, value in self.ray_labels.items())
        options |= extra
        words = ["--head"] if address is None else [f"--address={address}"]
        words += [f"--{name}" if value == "true" else f"--{name}={value}" for name, value in options.items()]
        return ["/bin/bash", "-c", "--", f"ulimit -n 65536; ray start {shlex.join(words)}"]


def ray_pods(spec: Object) -> Iterator[RayPod]:
    """The pods of a cluster spec, the head first."""
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
            group["maxReplicas"],
            group.get("resources", {}),
            group.get("labels", {}),
        )


def pod_specs(overlay: str) -> Iterator[tuple[str, Mapping[str, str], Object]]:
    """(name of the owner, labels, spec) of every pod."""
    for found in rendered(overlay):
        name = f"{found['kind']} {found['metadata']['name']}"
        if found["kind"] in CLUSTERS:
            for pod in ray_pods(cluster_spec(found)):
                yield f"{name} {pod.group}", pod.labels, pod.spec
        elif found["kind"] == "Deployment":
            template = found["spec"]["template"]
            yield name, template["metadata"]["labels"], template["spec"]


def containers(spec: Object) -> list[Object]:
    """All containers of a pod spec, init containers first."""
    return [*spec.get("initContainers", []), *spec["containers"]]


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether `matchLabels` select a pod with these labels."""
    return selector.items() <= labels.items()


_UNITS = {"": 1, "m": 0.001, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def quantity(text: str) -> int:
    """A Kubernetes quantity as a number, rounded up: `4Gi` in bytes, `500m` cores as 1."""
    match = re.fullmatch(r"([\d.]+)(|m|[KMGT]i)", text)
    assert match is not None, text
    return math.ceil(float(match[1]) * _UNITS[match[2]])
