"""What a user sees of a job that cannot start: `kubectl describe` or the RayJob's status gives the reason."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.contracts.manifests import cluster_spec
from tests.kubernetes.cluster import JOB, NAMESPACE, Cluster, Object, RayJob, events_of

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", autouse=True)
def free_cores(applied: Cluster) -> None:
    """Wait until the workers of earlier jobs have ended, for which Ray's autoscaler takes five minutes."""
    applied.until("the workers are gone", lambda: not applied.pods(node_type="worker"), 600)


def test_a_secret_that_is_missing_is_named(applied: Cluster) -> None:
    job = variant(applied, "no-secret")
    head(job)["containers"][0]["envFrom"] = [{"secretRef": {"name": "forgotten"}}]
    with started(applied, job):
        applied.until("the reason", lambda: described(applied, job, 'secret "forgotten" not found'), 300)


def test_an_image_that_does_not_exist_is_named(applied: Cluster) -> None:
    job = variant(applied, "no-image")
    head(job)["containers"][0]["image"] = "localhost:1/agent-rft:none"
    with started(applied, job):
        applied.until("the reason", lambda: described(applied, job, "localhost:1/agent-rft:none"), 300)


def test_an_image_that_does_not_start_is_named(applied: Cluster) -> None:
    job = variant(applied, "no-start")
    template = cluster_spec(job)["headGroupSpec"]["template"]
    template.setdefault("metadata", {}).setdefault("annotations", {})["ray.io/overwrite-container-cmd"] = "true"
    head(job)["containers"][0]["command"] = ["/opt/agent-rft/none"]
    with started(applied, job):
        applied.until("the reason", lambda: described(applied, job, "/opt/agent-rft/none: no such file"), 300)


def test_a_full_volume_is_named(applied: Cluster) -> None:
    job = variant(applied, "full")
    (state,) = [volume for volume in head(job)["volumes"] if volume["name"] == "state"]
    del state["persistentVolumeClaim"]
    state["emptyDir"] = {"medium": "Memory", "sizeLimit": "32Ki"}
    with started(applied, job):
        message = applied.until("the reason", lambda: message_of(applied, job), 600)
    assert "0 MiB is free on the disk of /var/lib/agent-rft/runs" in message


def variant(cluster: Cluster, name: str) -> Object:
    """The laptop's RayJob under another name, without workers and retries."""
    spec = copy.deepcopy(cluster.get(RayJob, JOB).raw["spec"])
    spec["entrypoint"] = spec["entrypoint"].replace("runs/job", f"runs/{name}")
    spec |= {"backoffLimit": 0, "suspend": False}
    spec.pop("jobId", None)
    job = {"metadata": {"name": name, "namespace": NAMESPACE}, "kind": "RayJob", "spec": spec}
    for group in cluster_spec(job)["workerGroupSpecs"]:
        group |= {"replicas": 0, "minReplicas": 0}
    return job


def head(job: Object) -> Object:
    found: Object = cluster_spec(job)["headGroupSpec"]["template"]["spec"]
    return found


@contextmanager
def started(cluster: Cluster, job: Object) -> Iterator[None]:
    """Create the RayJob, and delete it after the block."""
    made = RayJob(job, api=cluster.api)
    made.create()
    try:
        yield
    finally:
        made.delete()


def pod_of(cluster: Cluster, job: Object) -> str:
    """The name of the head pod of a job, or an empty text."""
    found = cluster.get(RayJob, job["metadata"]["name"]).raw.get("status", {}).get("rayClusterName", "")
    return next((pod.name for pod in cluster.pods(cluster=found, node_type="head")), "") if found else ""


def described(cluster: Cluster, job: Object, text: str) -> bool:
    """Whether an event of the head pod contains the text, as `kubectl describe` shows it."""
    return any(text in message for message in events_of(cluster, "Pod", pod_of(cluster, job)))


def message_of(cluster: Cluster, job: Object) -> str:
    """The message in the RayJob's status once it has ended, else an empty text."""
    status = cluster.get(RayJob, job["metadata"]["name"]).raw.get("status", {})
    ended = status.get("jobStatus") in ("FAILED", "STOPPED") or status.get("jobDeploymentStatus") == "Failed"
    return str(status.get("message", "")) if ended else ""
