"""The RayService: API jobs on pods that are added for them, an upgrade, python graders, and the manual RayCluster."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import yaml
from kr8s.objects import ConfigMap

from tests.kubernetes.cluster import NAMESPACE, Cluster, RayCluster, manual_blocks
from tests.support.paths import LEDGER

pytestmark = pytest.mark.timeout(1800)
MANUAL = "agent-rft-manual"
PORT = 8000
URL = f"http://127.0.0.1:{PORT}/v1"
START_S = 900
PYTHON = {"type": "python", "source": "def grade(sample, item):\n    return 0.5 if sample['output_text'] else 0.25\n"}


class Api:
    """The API behind `kubectl port-forward`, which ends with the pod that it leads to."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.key = ""
        self._forward: subprocess.Popen[str] | None = None

    def create_key_and_forward(self) -> None:
        """Run the manual's commands that create a key and forward the port."""
        _, _, commands, _ = manual_blocks()
        self._forward = self.cluster.shell(commands)
        assert self._forward.stdout is not None
        shown = []
        for line in self._forward.stdout:
            shown.append(line)
            if found := re.search(r"sk-rft-[\w-]+", line):
                self.key = found[0]
            if "Forwarding from 127.0.0.1" in line:
                break
        assert self.key and self._forward.poll() is None, shown

    def forward(self) -> None:
        """Forward the port again, to a pod that serves now."""
        self.close()
        self.cluster.until("the API answers", self._forwarded, START_S)

    def _forwarded(self) -> bool:
        if self._forward is None or self._forward.poll() is not None:
            command = f"kubectl --namespace {NAMESPACE} port-forward service/agent-rft-serve-svc {PORT}"
            self._forward = self.cluster.shell(command)
        return httpx.get(f"http://127.0.0.1:{PORT}/health/ready", timeout=10).status_code == 200

    def close(self) -> None:
        """End the forwarding."""
        if self._forward is not None:
            self._forward.kill()
            self._forward.wait()
            self._forward = None

    @property
    def client(self) -> openai.OpenAI:
        """OpenAI's client."""
        return openai.OpenAI(base_url=URL, api_key=self.key, max_retries=5, timeout=300)

    def create_job(self, grader: dict[str, Any] | None = None, rows: int | None = None, epochs: int = 1) -> str:
        """Create a job of the ledger, of 15 steps per epoch unless `rows` limits it, and return its id.

        It calls the tools of the overlay's job.
        """
        text = ConfigMap.get("agent-rft", namespace=NAMESPACE, api=self.cluster.api).raw["data"]["job.yaml"]
        token = self.cluster.secret_value("agent-rft", "LEDGER_TOKEN")
        method = yaml.safe_load(text.replace("${LEDGER_TOKEN}", token))["method"]["reinforcement"]
        lines = (LEDGER / "data" / "train.jsonl").read_bytes().splitlines(keepends=True)[:rows]
        file = self.client.files.create(file=("train.jsonl", b"".join(lines)), purpose="fine-tune")
        method = {name: method[name] for name in ("tools", "grader", "max_episode_steps")}
        method["hyperparameters"] = {"batch_size": 16 if rows is None else rows, "n_epochs": epochs}
        if grader is not None:
            method["grader"] = grader
        made = self.client.fine_tuning.jobs.create(
            model="gpt-5",
            training_file=file.id,
            seed=7,
            method={"type": "reinforcement", "reinforcement": method},  # type: ignore[arg-type]
        )
        return made.id

    def steps(self, job: str) -> list[int]:
        """The steps that the job's events report, oldest first."""
        events = list(self.client.fine_tuning.jobs.list_events(job, limit=100))[::-1]
        found: list[int] = [event.data["step"] for event in events if event.type == "metrics" and event.data]  # type: ignore[index]
        return found

    def ended(self, job: str) -> Any:
        """The job once it has ended."""
        found = self.client.fine_tuning.jobs.retrieve(job)
        return found if found.status in ("succeeded", "failed", "cancelled") else None


@pytest.fixture(scope="module")
def api(applied: Cluster) -> Iterator[Api]:
    found = Api(applied)
    applied.until("the API is ready", lambda: applied.head(applied.cluster_of_service()), START_S)
    found.create_key_and_forward()
    yield found
    found.close()


def test_the_manuals_commands_reach_the_api(api: Api) -> None:
    *_, commands = manual_blocks()
    process = api.cluster.shell(commands.replace("sk-rft-...", api.key))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "gpt-5 " in output


def test_jobs_are_submitted_by_hand_to_the_manual_cluster(api: Api) -> None:
    """Runs before the API's first job: idle workers of the API keep the room of two nodes for 300 s."""
    cluster = api.cluster
    cluster.get(RayCluster, MANUAL).patch({"spec": {"suspend": False}})
    with cluster.timed("`ray job submit` to the manual RayCluster, with the start of its pods"):
        head = cluster.until("its head", lambda: cluster.head(MANUAL), START_S)
        cluster.until("its workers", lambda: workers(cluster), START_S)
        folder = "/var/lib/agent-rft/manual"
        rows = (LEDGER / "data" / "train.jsonl").read_text().splitlines(keepends=True)[:8]
        cluster.run(head, "mkdir", "-p", folder)
        for name, text in {"job.yaml": short_job(cluster, folder), "train.jsonl": "".join(rows)}.items():
            cluster.run(head, "sh", "-c", 'printf %s "$1" > "$2"', "sh", text, f"{folder}/{name}")
        output = cluster.run(
            head,
            "ray",
            "job",
            "submit",
            "--",
            "agent-rft",
            "train",
            f"{folder}/job.yaml",
            "--run-folder",
            f"{folder}/run",
        )
    assert "succeeded" in output
    with cluster.timed("the end of the pods of a suspended cluster without a run"):
        cluster.get(RayCluster, MANUAL).patch({"spec": {"suspend": True}})
        cluster.until("its pods are gone", lambda: not cluster.pods(cluster=MANUAL), 200)


def test_an_api_job_gets_its_pods_and_the_tuned_model_answers(api: Api) -> None:
    current = api.cluster.cluster_of_service()
    assert not api.cluster.pods(cluster=current, group="learner")
    with api.cluster.timed("API job of 15 steps, without a worker at first"):
        job = api.create_job()
        ended = api.cluster.until("the job's end", lambda: api.ended(job), START_S)
    assert ended.status == "succeeded", ended.error
    with api.cluster.timed("first answer of the tuned model"):
        answer = api.client.chat.completions.create(
            model=ended.fine_tuned_model, messages=[{"role": "user", "content": "hello"}], max_completion_tokens=8
        )
    assert answer.usage is not None and answer.usage.completion_tokens > 0


def test_an_upgrade_continues_the_running_job(api: Api) -> None:
    """As the manual describes it; the new version of the manifests adds the python graders."""
    cluster, job = api.cluster, api.create_job(epochs=3)  # a job of one epoch may end before its cluster is deleted
    cluster.until("the third step", lambda: len(api.steps(job)) > 2, START_S)
    cluster.edit("overlays/laptop/kustomization.yaml", "../../copies", "../../graders, ../../copies")
    cluster.edit("overlays/laptop/agent-rft.yaml", "wait_for_nodes_s:", "python_grader_nodes: true\nwait_for_nodes_s:")
    if not cluster.has_user_namespaces():
        cluster.edit("graders/kustomization.yaml", "              hostUsers: false\n", "")  # as the manual says
    cluster.kubectl("apply", "-f", "k8s/graders/policy.yaml")
    cluster.kubectl("apply", "-k", "k8s/overlays/laptop")
    assert not changed(cluster.kubectl("apply", "-k", "k8s/overlays/laptop").stdout)
    current = cluster.cluster_of_service()
    with cluster.timed("an upgrade: from the deleted cluster to the next step of the API job"):
        done = api.steps(job)
        cluster.get(RayCluster, current).delete()
        cluster.until("a new cluster", lambda: cluster.cluster_of_service() not in ("", current), START_S)
        api.forward()
        cluster.until("the next step", lambda: api.steps(job)[-1] > done[-1], START_S)
    ended = cluster.until("the job's end", lambda: api.ended(job), START_S)
    assert ended.status == "succeeded", ended.error
    assert api.steps(job) == list(range(1, 46))


def test_python_graders_run_in_pods_of_their_own_which_nobody_can_enter(api: Api) -> None:
    cluster = api.cluster
    current = cluster.cluster_of_service()
    with cluster.timed("a trial of a python grader, without a pod at first"):
        body = {"grader": PYTHON | {"name": "code"}, "item": {}, "model_sample": "an answer"}
        answer = httpx.post(
            f"{URL}/fine_tuning/alpha/graders/run",
            json=body,
            headers={"Authorization": f"Bearer {api.key}"},
            timeout=START_S,
        )
    assert answer.status_code == 200, answer.text
    assert answer.json()["reward"] == 0.5
    pod = cluster.until(
        "a grader's pod", lambda: next(iter(cluster.pods(cluster=current, group="python-graders")), None), 10
    )
    refused = cluster.kubectl(
        *("--namespace", NAMESPACE, "debug", pod.name, "--image=agent-rft", "--target=ray-worker", "--attach=false"),
        *("--", "true"),
        check=False,
    )
    assert refused.returncode != 0
    assert "ValidatingAdmissionPolicy 'agent-rft-pods'" in refused.stderr
    with cluster.timed("an API job with a python grader"):
        job = api.create_job(PYTHON | {"name": "code"}, rows=16)
        ended = cluster.until("the job's end", lambda: api.ended(job), START_S)
    assert ended.status == "succeeded", ended.error


def workers(cluster: Cluster) -> list[Any]:
    found = [pod for group in ("engine", "learner") for pod in cluster.pods(cluster=MANUAL, group=group)]
    return found if len(found) == 2 and all(pod.ready() for pod in found) else []


def short_job(cluster: Cluster, folder: str) -> str:
    """The overlay's job with one step."""
    text = ConfigMap.get("agent-rft", namespace=NAMESPACE, api=cluster.api).raw["data"]["job.yaml"]
    job = yaml.safe_load(text)
    job["training_file"] = f"{folder}/train.jsonl"
    del job["validation_file"], job["test_file"]
    job["method"]["reinforcement"]["hyperparameters"] = {"batch_size": 8, "n_epochs": 1}
    return json.dumps(job)


def changed(output: str) -> list[str]:
    """The objects that `kubectl apply` changed."""
    return [line for line in output.splitlines() if not line.endswith("unchanged")]
