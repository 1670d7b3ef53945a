"""Each overlay's job fits into its pods according to `agent-rft plan`, and survives the loss of its cluster."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from agent_rft.cli.api_commands.key_commands import parse_duration
from agent_rft.cli.main import app
from agent_rft.cluster.checks.check_job import check_job
from agent_rft.cluster.checks.disk_space import FreeSpace
from agent_rft.cluster.planning.memory_estimates import GIB
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.cluster.ray_cluster.ray_job_status import STOP_WAIT
from agent_rft.cluster.run import pre_stop
from agent_rft.spec.job import FILES
from agent_rft.spec.job_file import load_job
from agent_rft.spec.operator.operator_file import load_operator
from tests.contracts.manifests import (
    CLUSTERS,
    JOB_SECRETS,
    OVERLAYS,
    PYTHON_GRADERS,
    ROOT,
    RayPod,
    cluster_spec,
    one,
    quantity,
    ray_pods,
)

QWEN3_2B = {
    "num_parameters": 1_720_574_976,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
}
QWEN3_8B = {
    "num_parameters": 8_190_735_360,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
}


overlays = pytest.mark.parametrize("overlay", OVERLAYS)
MODELS = {"laptop": None, "gpu": QWEN3_2B, "production": QWEN3_8B}
"""The sizes of the model that each overlay's job names; None: the one in the repository."""
jobs = pytest.mark.parametrize(("overlay", "model"), MODELS.items())


@overlays
def test_shared_memory_and_cpus_fit_the_pod_limits(overlay: str) -> None:
    for kind in CLUSTERS:
        for pod in ray_pods(cluster_spec(one(overlay, kind))):
            store = int(pod.parameters["object-store-memory"])
            assert store < quantity(size_limit(pod, "shm")) < quantity(pod.limits["memory"])
            assert pod.cores <= quantity(pod.container["resources"]["requests"]["cpu"])


@jobs
def test_the_job_fits_according_to_the_plan(overlay: str, model: Mapping[str, int] | None, tmp_path: Path) -> None:
    """The nodes have exactly the resources of the pods, and their object stores, /dev/shm and /tmp suffice."""
    plan = planned(overlay, model, list(ray_pods(cluster_spec(one(overlay, "RayJob")))), tmp_path)
    assert plan["fits"], plan["problems"]
    assert plan["warnings"] == []
    assert {place["role"] for place in plan["places"]} == {"engine", "learner rank"}
    for place in plan["places"]:  # each in its own worker group
        assert place["node"].startswith(place["role"].split()[0]), place


@jobs
def test_pods_that_hold_a_run_let_it_save_a_checkpoint(
    overlay: str, model: Mapping[str, int] | None, tmp_path: Path
) -> None:
    """The head has the drivers, the learner's pod the ranks; engines are not needed for it."""
    needed = planned(overlay, model, list(ray_pods(cluster_spec(one(overlay, "RayJob")))), tmp_path)["stop"]
    for kind in CLUSTERS:
        pods = {pod.group: pod for pod in ray_pods(cluster_spec(one(overlay, kind)))}
        assert "lifecycle" not in pods["engine"].container
        for pod in (pods["head"], pods["learner"]):
            python, option, module = pod.container["lifecycle"]["preStop"]["exec"]["command"]
            assert (python, option, module) == ("python", "-m", pre_stop.__name__)
            (wait,) = [v["value"] for v in pod.container["env"] if v["name"] == STOP_WAIT]
            assert int(wait) >= needed["wait_s"]
            assert pod.spec["terminationGracePeriodSeconds"] - int(wait) == needed["grace_s"] - needed["wait_s"]


def test_an_object_store_that_is_smaller_than_the_weights_is_warned_of(tmp_path: Path) -> None:
    """The learner's store had 8 GB for 16 GB of weights: Ray filled the 10 GiB of /tmp, and the pod was evicted."""
    *pods, learner = ray_pods(cluster_spec(one("production", "RayJob")))
    small = replace(learner, parameters={**learner.parameters, "object-store-memory": "8000000000"})
    plan = planned("production", QWEN3_8B, [*pods, small], tmp_path)
    assert plan["fits"]
    assert {warning["code"] for warning in plan["warnings"]} == {"small_object_store", "small_tmp"}
    (warning,) = [warning for warning in plan["warnings"] if warning["code"] == "small_object_store"]
    assert "learner" in warning["message"] and "--object-store-memory=2" in warning["fix"]


def planned(overlay: str, model: Mapping[str, int] | None, pods: Sequence[RayPod], folder: Path) -> dict[str, Any]:
    """`agent-rft plan --json` for the overlay's job on these pods."""
    nodes = [node_of(pod, pod.replicas) for pod in pods]
    (folder / "nodes.yaml").write_text(yaml.safe_dump({"nodes": nodes}))
    job = yaml.safe_load(one(overlay, "ConfigMap", "agent-rft")["data"]["job.yaml"])
    job["model"] = str(ROOT / "examples/ledger/base" if model is None else model_folder(folder / "model", model))
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    arguments = ["plan", str(folder / "job.yaml"), "--cluster", str(folder / "nodes.yaml"), "--json"]
    done = CliRunner().invoke(app, arguments, env=dict.fromkeys(JOB_SECRETS, "secret"))
    plan: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == (0 if plan["fits"] else 2)
    return plan


def node_of(pod: RayPod, count: int) -> dict[str, Any]:
    """The nodes of a group of pods, as in a list of nodes."""
    node = {
        "name": pod.group,
        "count": count,
        "cores": pod.cores,
        "memory_gib": quantity(pod.limits["memory"]) / GIB,
        "object_store_gib": int(pod.parameters["object-store-memory"]) / GIB,
        "shm_gib": quantity(size_limit(pod, "shm")) / GIB,
        "tmp_gib": quantity(size_limit(pod, "tmp")) / GIB,
    }
    return node | ({"gpus": pod.gpus, "gpu_memory_gib": 80} if pod.gpus else {})


def size_limit(pod: RayPod, volume: str) -> str:
    (limit,) = [str(found["emptyDir"]["sizeLimit"]) for found in pod.spec["volumes"] if found["name"] == volume]
    return limit


@overlays
@pytest.mark.parametrize("kind", CLUSTERS)
def test_the_operators_list_of_nodes_has_the_pods_that_may_join(overlay: str, kind: str) -> None:
    listed = yaml.safe_load(one(overlay, "ConfigMap", "agent-rft")["data"]["agent-rft.yaml"])["nodes"]
    pods = [pod for pod in ray_pods(cluster_spec(one(overlay, kind))) if pod.group != PYTHON_GRADERS]
    for node, pod in zip(listed, pods, strict=True):
        expected = node_of(pod, pod.max_replicas)
        name, found = expected.pop("name"), {"count": 1} | node
        assert found.pop("name") == name
        assert found == pytest.approx(expected, abs=0.01)


@jobs
async def test_a_job_of_the_api_waits_for_workers_that_have_not_started(
    overlay: str, model: Mapping[str, int] | None, tmp_path: Path
) -> None:
    head, *workers = ray_pods(cluster_spec(one(overlay, "RayService")))
    assert {pod.replicas for pod in workers} == {0}
    for name, text in one(overlay, "ConfigMap", "agent-rft")["data"].items():
        (tmp_path / name).write_text(text)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": [{"role": "user", "content": "Which files are there?"}]}\n')
    job = load_job(tmp_path / "job.yaml", dict.fromkeys(JOB_SECRETS, "secret")).model_copy(
        update={
            "model": str(ROOT / "examples/ledger/base" if model is None else model_folder(tmp_path / "model", model)),
            **dict.fromkeys(FILES, str(rows)),
        }
    )
    prepared = await check_job(
        job,
        ModelFolder.find(job.model),
        [Node("head", cores=head.cores, memory_bytes=int(quantity(head.limits["memory"])))],
        tmp_path / "runs",
        load_operator(tmp_path / "agent-rft.yaml"),
        dry_run=False,
        free_space=FreeSpace(disk_bytes=2**42, shm_bytes=quantity(size_limit(head, "shm"))),
    )
    assert prepared.cluster.fits
    assert prepared.placement.engine_gpus == int(model is not None)


def model_folder(folder: Path, sizes: Mapping[str, int]) -> Path:
    """A Qwen3 of that size with sparse weights: of a safetensors file only the header is read."""
    shutil.copytree(
        ROOT / "examples/ledger/base", folder, ignore=shutil.ignore_patterns("config.json", "*.safetensors")
    )
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16", "head_dim": 128}
    (folder / "config.json").write_text(json.dumps(config | sizes))
    size = sizes["num_parameters"] * 2
    tensor = {"dtype": "BF16", "shape": [sizes["num_parameters"]], "data_offsets": [0, size]}
    header = json.dumps({"weights": tensor}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    return folder


def test_a_job_is_retried_unless_it_is_invalid_and_its_run_folder_outlives_the_cluster() -> None:
    for overlay in OVERLAYS:
        spec = one(overlay, "RayJob")["spec"]
        assert spec["backoffLimit"] > 0 and spec["shutdownAfterJobFinishes"] is True
        assert spec["ttlSecondsAfterFinished"] <= 60  # until then its GPUs are idle
        assert spec["submissionMode"] == "HTTPMode"
        *_, given, folder, waits, wait, refused = spec["entrypoint"].split()
        assert (given, waits, refused) == ("--run-folder", "--wait-for-run", "--no-retry-refused")
        assert parse_duration(wait, waits) >= 60, "as long as a stop of the job before may take"
        head = next(ray_pods(spec["rayClusterSpec"]))
        volumes = {volume["name"]: volume for volume in head.spec["volumes"]}
        (mount,) = [m for m in head.container["volumeMounts"] if Path(folder).is_relative_to(m["mountPath"])]
        claim = volumes[mount["name"]]["persistentVolumeClaim"]["claimName"]
        assert claim == one(overlay, "PersistentVolumeClaim")["metadata"]["name"]
