"""A RayJob from `kubectl apply` to its end, with what may happen to its pods, its nodes and Kubernetes on the way.

One job runs through all tests of this file, in their order.
"""

from __future__ import annotations

import copy
import subprocess
import time

import pytest

from agent_rft.events import CheckpointSaved, JobEnded, JobResumed, StepDone, ZeroVarianceBatch
from tests.kubernetes.cluster import EPOCHS, JOB, Cluster, Object, RayJob, operators

STEPS = 15 * EPOCHS
HOST, PREFERRED = "kubernetes.io/hostname", "preferredDuringSchedulingIgnoredDuringExecution"
START_S = 600
"""How long a cluster's pods may take until the job trains: on two busy cores, with a cold disk."""


def test_the_manuals_commands_start_a_job_that_trains(applied: Cluster, watched: subprocess.Popen[str]) -> None:
    with applied.timed("from `kubectl apply` to the third step"):
        applied.past(2, START_S)
    assert watched.poll() is None
    watched.terminate()
    shown, _ = watched.communicate()
    assert '"kind": "job_started"' in shown and '"kind": "step_done"' in shown


def test_a_job_whose_head_is_lost_resumes_from_its_last_checkpoint(applied: Cluster) -> None:
    applied.past(5, START_S)
    head = applied.head(applied.cluster_of_job())
    assert head is not None
    head.delete(grace_period=0, force=True)
    with applied.timed("a lost head: from its end to the next step"):
        resumed = applied.until("a resumption", lambda: resumptions(applied), START_S)[-1]
        applied.past(resumed + 1, START_S)
    saved = [found.event.step for found in applied.run_events() if isinstance(found.event, CheckpointSaved)]
    assert resumed in saved


def test_a_drained_cluster_saves_a_checkpoint_and_its_successor_goes_on(applied: Cluster) -> None:
    at = applied.next_step(START_S)
    before, first = resumptions(applied), applied.cluster_of_job()
    nodes = sorted({pod.spec.nodeName for pod in applied.pods(cluster=first)})
    with applied.timed("`kubectl drain` of the job's pods"):
        for node in nodes:
            pods = f"--pod-selector=ray.io/cluster={first}"
            done = applied.kubectl("drain", node, pods, "--delete-emptydir-data", "--timeout=200s", check=False)
            assert done.returncode == 0, done.stderr
    for node in nodes:
        applied.kubectl("uncordon", node)
    with applied.timed("from the end of the drain to the next step"):
        resumed = applied.until("a resumption", lambda: resumptions(applied)[len(before) :], START_S)[0]
        applied.past(resumed, START_S)
    assert resumed >= at
    assert outcomes(applied)[-1] == "stopped"
    after = [found.event for found in applied.run_events()]
    index = next(i for i, event in enumerate(after) if isinstance(event, JobEnded) and event.outcome == "stopped")
    done_before = [event.step for event in after[:index] if isinstance(event, StepDone)]
    assert resumed == done_before[-1], "steps were done twice"


def test_a_suspended_job_that_is_resumed_at_once_has_one_writer(applied: Cluster) -> None:
    """The job's head moves to the node of the API's, and its workers to another, which is lost later."""
    applied.next_step(START_S)
    before, first = resumptions(applied), applied.cluster_of_job()
    job = applied.get(RayJob, JOB)
    suspended = {"suspend": True, "rayClusterSpec": placed(job.raw["spec"]["rayClusterSpec"], node_of_api(applied))}
    with applied.timed("`suspend` true, then false at once, to the next step"):
        job.patch({"spec": suspended})
        job.patch({"spec": {"suspend": False}})
        time.sleep(5)  # not for luck: the controller may or may not have seen the first change, and both must be right
        if applied.cluster_of_job() == first:
            job.patch({"spec": {"suspend": True}})
            applied.until("the job is suspended", lambda: applied.cluster_of_job() != first, 300)
            job.patch({"spec": {"suspend": False}})
        resumed = applied.until("a resumption", lambda: resumptions(applied)[len(before) :], START_S)[0]
        applied.past(resumed, START_S)
    steps = applied.steps()
    assert steps == list(range(1, len(steps) + 1))


def test_training_goes_on_without_the_operator_and_the_api_server(applied: Cluster) -> None:
    applied.next_step(START_S)
    for operator in operators(applied.api):
        operator.delete()
    step = applied.next_step(120)
    before = outcomes(applied)
    applied.take_api_server_away(60)
    assert applied.past(step + 2, 120)
    assert outcomes(applied) == before
    applied.until("a new operator", lambda: any(found.ready() for found in operators(applied.api)), 300)


def test_a_node_that_is_cut_off_loses_no_more_than_a_few_minutes(applied: Cluster) -> None:
    """A node without a head: Kubernetes keeps a lost head's pod until its node is back or deleted."""
    pods = applied.pods(cluster=applied.cluster_of_job())
    (head,) = [pod for pod in pods if pod.labels["ray.io/node-type"] == "head"]
    (cut, *_) = {pod.spec.nodeName for pod in pods} - {node_of_api(applied)}
    assert head.spec.nodeName != cut
    applied.move_from(cut)
    applied.next_step(START_S)
    with applied.node_off_the_network(cut), applied.timed("a node cut off the network: to the second step"):
        applied.until("Kubernetes has lost the node", lambda: not applied.nodes_ready(), 120)
        applied.past(applied.steps()[-1] + 1, 900)  # the next one may have been learned and not yet reported
    applied.until("all nodes are ready", lambda: applied.nodes_ready(), 300)


def test_the_job_succeeds_and_each_step_was_done_once(applied: Cluster) -> None:
    with applied.timed("to the end of the job"):
        status = applied.until("the job's end", lambda: ended(applied), 1200)
    assert status["jobStatus"] == "SUCCEEDED", status
    steps, starved = applied.steps(), sum(isinstance(found.event, ZeroVarianceBatch) for found in applied.run_events())
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) + starved >= STEPS, "each batch is a step, unless it has no signal"
    assert outcomes(applied)[-1] == "done"
    pods = applied.until("the cluster is deleted", lambda: not applied.pods(cluster=status["rayClusterName"]), 300)
    assert pods
    head = applied.head(applied.cluster_of_service())
    assert head is not None
    listed = applied.run(head, "ls", f"/var/lib/agent-rft/runs/job/checkpoints/step-{steps[-1]:06d}")
    assert "config.json" in listed


def node_of_api(cluster: Cluster) -> str:
    """The node of the RayService's head."""
    head = cluster.head(cluster.cluster_of_service())
    assert head is not None
    return str(head.spec.nodeName)


def placed(cluster: Object, node: str) -> Object:
    """A RayCluster's spec whose head has this node, and whose workers prefer others, but all have room on this one."""
    spec = copy.deepcopy(cluster)
    spec["headGroupSpec"]["template"]["spec"]["nodeSelector"] = {HOST: node}
    elsewhere = {"matchExpressions": [{"key": HOST, "operator": "NotIn", "values": [node]}]}
    preferred = {"nodeAffinity": {PREFERRED: [{"weight": 100, "preference": elsewhere}]}}
    for group in spec["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        pod["affinity"] = preferred
        for container in pod["containers"]:
            container["resources"]["requests"]["cpu"] = "200m"
    return spec


def resumptions(cluster: Cluster) -> list[int]:
    """The steps from which the job was resumed so far."""
    return [found.step for found in cluster.run_events() if isinstance(found.event, JobResumed)]


def outcomes(cluster: Cluster) -> list[str]:
    return [found.event.outcome for found in cluster.run_events() if isinstance(found.event, JobEnded)]


def ended(cluster: Cluster) -> dict[str, str] | None:
    """The RayJob's status once it has ended."""
    status: dict[str, str] = cluster.get(RayJob, JOB).raw.get("status", {})
    return status if status.get("jobStatus") in ("SUCCEEDED", "FAILED", "STOPPED") else None


pytestmark = pytest.mark.timeout(1800)
