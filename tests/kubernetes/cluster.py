"""The Kubernetes cluster that KUBECONFIG names, with KubeRay's operator and our image, and the laptop's overlay."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import httpx
import kr8s
import openai
from kr8s.objects import Event, Namespace, Node, PersistentVolume, Pod, Secret, new_class

from agent_rft.stored_events import RunEvent
from tests.contracts.manifests import K8S, KUBECTL, edit, tracked_files
from tests.docs.markdown import pages

IMAGE = f"agent-rft:{version('agent-rft')}-cpu"
NAMESPACE, JOB, SERVICE = "agent-rft", "agent-rft-job", "agent-rft"
RUN = "/var/lib/agent-rft/runs/job"
EPOCHS = 8
"""The RayJob's epochs, of 15 steps each: enough for all that happens to it."""
POLL_S = 1.0
READ_S = 300  # a head is not ready for a while after its node or the API server was away
VARIABLES = ("CUT", "JOIN", "STOP_API", "START_API", "PUBLIC_ADDRESS")
NOT_YET = (
    kr8s.ServerError,
    kr8s.NotFoundError,
    kr8s.APITimeoutError,
    kr8s.ExecError,
    httpx.TransportError,
    openai.APIConnectionError,
    ConnectionError,
    ExceptionGroup,
)
"""What clients raise while an API server, an object or a pod is away; commands in pods raise it in a group."""
StorageClass = new_class("StorageClass", "storage.k8s.io/v1", namespaced=False, plural="storageclasses")
RayCluster = new_class("RayCluster", "ray.io/v1", namespaced=True)
RayJob = new_class("RayJob", "ray.io/v1", namespaced=True)
RayService = new_class("RayService", "ray.io/v1", namespaced=True)

Object = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Means:
    """What differs between clusters, from variables of `make kubernetes`."""

    volume: Path | None
    """VOLUME: a folder that all nodes share, for clusters without a default StorageClass."""
    cut: str
    join: str
    """CUT and JOIN: commands that take the node `{node}` off the network, and that put it back."""
    stop_api: str
    start_api: str
    """STOP_API and START_API: commands after which the API server does not answer, and answers again."""
    public_address: str
    """PUBLIC_ADDRESS: an address outside of all private ranges where something listens on port 443."""

    @classmethod
    def given(cls, environment: Mapping[str, str] = os.environ) -> Means:
        """The means in the environment; a missing one is empty."""
        volume = environment.get("VOLUME")
        return cls(Path(volume) if volume else None, *(environment.get(name, "") for name in VARIABLES))


def missing(api: kr8s.Api, image: str, means: Means, keep: bool) -> str | None:
    """A sentence that names what the cluster lacks, or None; if `keep`, the namespace may exist."""
    if not any(pod.status.get("phase") == "Running" for pod in operators(api)):
        return "the KubeRay operator does not run in this cluster: install it as docs/kubernetes.md says"
    for node in listed(Node, api):
        names = [name for found in node.status.images for name in found.get("names", [])]
        if not any(name.endswith(image) for name in names):
            return f"node {node.name} does not have the image {image}: build it with `make image` and load it"
    classes = [found.metadata.get("annotations", {}) for found in listed(StorageClass, api)]
    if means.volume is None and not any("storageclass.kubernetes.io/is-default-class" in found for found in classes):
        return "the cluster has no default StorageClass: give VOLUME, a folder that all nodes share"
    if listed(Namespace, api, field_selector=f"metadata.name={NAMESPACE}") and not keep:
        return f"the namespace {NAMESPACE} exists already: the tests would delete it"
    lacking = [
        name.upper() for name in ("cut", "join", "stop_api", "start_api", "public_address") if not getattr(means, name)
    ]
    if lacking:
        return f"these variables are missing (tests/kubernetes/README.md describes them): {', '.join(lacking)}"
    return None


def listed(kind: type[Any], api: kr8s.Api, **options: Any) -> list[Any]:
    """The objects of a kind; `options` are those of kr8s."""
    return list(kind.list(api=api, **options))


def operators(api: kr8s.Api) -> list[Any]:
    """The pods of KubeRay's operator."""
    return listed(Pod, api, namespace=kr8s.ALL, label_selector={"app.kubernetes.io/name": "kuberay-operator"})


def name_servers(api: kr8s.Api) -> list[Any]:
    """The pods of the cluster's DNS."""
    return listed(Pod, api, namespace="kube-system", label_selector={"k8s-app": "kube-dns"})


class Cluster:
    """The overlay `laptop` in the cluster; `k8s` is a copy of our k8s/ that a test may change before it applies it."""

    def __init__(self, api: kr8s.Api, means: Means, folder: Path) -> None:
        self.api = api
        self.means = means
        self.folder = folder
        self.k8s = folder / "k8s"
        self.times: dict[str, float] = {}
        """Seconds that each scenario took, for the table at the end."""
        for name in tracked_files():
            copied = self.k8s / name
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(K8S / name, copied)

    # -- set-up --------------------------------------------------------------------------------------------------------

    def make_volume(self) -> None:
        """Create the volume for a cluster that has no StorageClass."""
        if self.means.volume is None:
            return
        self.means.volume.mkdir(parents=True)
        names = [node.name for node in listed(Node, self.api)]
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": names}]}
        spec = {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "local": {"path": str(self.means.volume)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        }
        PersistentVolume({"metadata": {"name": "agent-rft-test"}, "spec": spec}, api=self.api).create()

    def remove(self) -> None:
        """Delete all that the tests made."""
        for namespace in self._namespaces():
            namespace.delete()
        self.until("the namespace is deleted", lambda: not self.exists(), 300)
        if self.means.volume is not None:
            for volume in listed(PersistentVolume, self.api, field_selector="metadata.name=agent-rft-test"):
                volume.delete()
            shutil.rmtree(self.means.volume, ignore_errors=True)

    def exists(self) -> bool:
        """Whether the namespace is there."""
        return bool(self._namespaces())

    def _namespaces(self) -> list[Any]:
        return listed(Namespace, self.api, field_selector=f"metadata.name={NAMESPACE}")

    # -- commands ------------------------------------------------------------------------------------------------------

    def kubectl(self, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl in the folder that contains `k8s`."""
        command = [KUBECTL, *arguments]
        return subprocess.run(command, cwd=self.folder, check=check, capture_output=True, text=True, timeout=300)

    def shell(self, text: str, **variables: str) -> subprocess.Popen[str]:
        """Start commands of the manual in the folder that contains `k8s`, with their output in a pipe."""
        path = f"{KUBECTL.parent}:{os.environ['PATH']}"
        return subprocess.Popen(
            ["bash", "-eo", "pipefail", "-c", text],
            cwd=self.folder,
            env=os.environ | variables | {"PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text that occurs once in a file of the copy of k8s/."""
        edit(self.k8s / name, old, new)

    # -- objects -------------------------------------------------------------------------------------------------------

    def until(self, what: str, found: Callable[[], T | None], within_s: float) -> T:
        """Ask `found` once a second until its answer is true, and return it; API errors count as no answer yet.

        Raises:
            AssertionError: It was not true in time.
        """
        deadline = time.monotonic() + within_s
        answer: object = None
        while time.monotonic() < deadline:
            try:
                if answer := found():
                    return answer
            except NOT_YET as error:
                answer = error
            time.sleep(POLL_S)
        raise AssertionError(f"{what}: not within {within_s:g} s; last: {answer}")

    def get(self, kind: type[Any], name: str) -> Any:
        """An object of the namespace, as it is now."""
        return kind.get(name, namespace=NAMESPACE, api=self.api)

    def secret_value(self, name: str, key: str) -> str:
        """A value in a Secret."""
        return base64.b64decode(self.get(Secret, name).raw["data"][key]).decode()

    def pods(self, **labels: str) -> list[Any]:
        """The pods of the namespace with these labels, such as `group="engine", cluster=...`."""
        full = {f"ray.io/{key.replace('_', '-')}": value for key, value in labels.items()}
        return listed(Pod, self.api, namespace=NAMESPACE, label_selector=full)

    def cluster_of_job(self) -> str:
        """The name of the RayCluster that runs the RayJob now, or an empty text."""
        return str(self.get(RayJob, JOB).raw.get("status", {}).get("rayClusterName", ""))

    def cluster_of_service(self) -> str:
        """The name of the RayCluster of the RayService, or an empty text."""
        status = self.get(RayService, SERVICE).raw.get("status", {})
        return str(status.get("activeServiceStatus", {}).get("rayClusterName", ""))

    def head(self, cluster: str) -> Any:
        """The head pod of a cluster if it is ready and not ending."""
        found = self.pods(cluster=cluster, node_type="head")
        return next((pod for pod in found if pod.ready() and not pod.metadata.get("deletionTimestamp")), None)

    def run(self, pod: Any, *command: str, check: bool = True) -> str:
        """Run a command in a pod's first container and return its output."""
        container = pod.spec.containers[0].name
        ended = pod.exec(list(command), container=container, check=check)
        output: str = (ended.stdout + (b"" if check else ended.stderr)).decode()
        return output

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def has_user_namespaces(self) -> bool:
        """Whether the container runtimes of all nodes support pods with `hostUsers: false`."""
        handlers = [node.raw["status"].get("runtimeHandlers", []) for node in listed(Node, self.api)]
        return all(any(each.get("features", {}).get("userNamespaces") for each in found) for found in handlers)

    def nodes_ready(self) -> bool:
        """Whether all nodes are ready."""
        return all(
            condition.status == "True"
            for node in listed(Node, self.api)
            for condition in node.status.conditions
            if condition.type == "Ready"
        )

    def move_from(self, node: str) -> None:
        """Start the operator and the DNS elsewhere if they run on this node: either may have a single pod."""
        self.kubectl("cordon", node)
        for pod in self._single_pods():
            if pod.spec.nodeName == node:
                pod.delete()
        self.until(
            "the operator and the DNS run elsewhere",
            lambda: all(pod.ready() and pod.spec.nodeName != node for pod in self._single_pods()),
            120,
        )
        self.kubectl("uncordon", node)

    def _single_pods(self) -> list[Any]:
        return [*operators(self.api), *name_servers(self.api)]

    @contextmanager
    def node_off_the_network(self, name: str) -> Iterator[None]:
        """Within the block, the node reaches nothing and nothing reaches it."""
        _command(self.means.cut.format(node=name))
        try:
            yield
        finally:
            _command(self.means.join.format(node=name))

    def take_api_server_away(self, duration_s: float) -> None:
        """Let the API server not answer for a while."""
        _command(self.means.stop_api)
        try:
            time.sleep(duration_s)
        finally:
            _command(self.means.start_api)

    # -- the run -------------------------------------------------------------------------------------------------------

    def lines(self, name: str) -> list[Object]:
        """The complete lines of a JSON Lines file in the RayJob's run folder, read through the service's head."""
        path = f"{RUN}/{name}"

        def read() -> list[str] | None:
            head = self.head(self.cluster_of_service())
            return head and [self.run(head, "sh", "-c", f"test ! -e {path} || cat {path}")]

        (text,) = self.until(f"the service's head reads {name}", read, READ_S)
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def run_events(self) -> list[RunEvent]:
        """The RayJob's events so far."""
        return [RunEvent.from_line(line) for line in self.lines("events.jsonl")]

    def steps(self) -> list[int]:
        """The steps of the RayJob so far, as its metrics record them."""
        return [int(line["step"]) for line in self.lines("metrics.jsonl")]

    def past(self, step: int, within_s: float) -> int:
        """Wait until the RayJob has done more than `step` steps, and return its last one."""
        return self.until(f"step {step + 1}", lambda: next((s for s in self.steps()[::-1] if s > step), None), within_s)

    def next_step(self, within_s: float) -> int:
        """Wait for one more step of the RayJob than it has done, and return it."""
        return self.past(max(self.steps(), default=0), within_s)

    # -- records -------------------------------------------------------------------------------------------------------

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Record how long the block takes."""
        began = time.monotonic()
        yield
        self.times[name] = time.monotonic() - began

    def save_logs(self, folder: Path) -> None:
        """Save what Kubernetes knows of the namespace: objects, events, and the logs of all containers."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        kinds = "pods,services,rayjobs,rayservices,rayclusters,networkpolicies,persistentvolumeclaims"
        for name, arguments in {
            "objects.yaml": ("get", kinds, "--output", "yaml"),
            "describe.txt": ("describe", kinds),
            "events.txt": ("get", "events", "--sort-by", ".lastTimestamp"),
        }.items():
            done = self.kubectl("--namespace", NAMESPACE, *arguments, check=False)
            (folder / name).write_text(done.stdout + done.stderr)
        for pod in listed(Pod, self.api, namespace=NAMESPACE):
            for container in pod.spec.containers:
                done = self.kubectl("--namespace", NAMESPACE, "logs", pod.name, "-c", container.name, check=False)
                (folder / f"{pod.name}.{container.name}.log").write_text(done.stdout + done.stderr)
        with suppress(*NOT_YET):
            (folder / "run_events.txt").write_text("\n".join(map(str, self.run_events())))


def _command(text: str) -> None:
    subprocess.run(["bash", "-ec", text], check=True, timeout=60)


def manual_blocks() -> Sequence[str]:
    """The commands for a laptop in docs/kubernetes.md, block by block."""
    (page,) = [page for page in pages() if page.path == "docs/kubernetes.md"]
    return [block.text for block in page.blocks if block.mark == "run kubernetes"]


def events_of(cluster: Cluster, kind: str, name: str) -> list[str]:
    """The messages of Kubernetes' events for an object, as `kubectl describe` shows them."""
    fields = {"involvedObject.kind": kind, "involvedObject.name": name}
    found = listed(Event, cluster.api, namespace=NAMESPACE, field_selector=fields)
    return [str(event.raw.get("message", "")) for event in found]
