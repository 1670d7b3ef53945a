"""Each overlay as kustomize builds it: Kubernetes and KubeRay accept the objects, and all that they refer to exists."""

from __future__ import annotations

import gzip
import json
import re
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from ray._common.utils import import_attr
from ray._private import ray_constants
from ray.dashboard.http_server_agent import PUBLIC_EXACT_PATHS
from ray.scripts.scripts import start
from ray.serve import Application
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary
from ray.serve.schema import ServeDeploySchema
from typer.main import get_command

from agent_rft.actors.runtime.grader_nodes import AVOID_PYTHON_GRADERS
from agent_rft.cli.main import app
from agent_rft.cluster.observability.dashboards.grafana import dashboard_json
from agent_rft.cluster.observability.monitoring_files import DASHBOARDS
from agent_rft.cluster.ray_cluster import read_ahead
from agent_rft.cluster.ray_cluster.ray_internals import read_node_programs
from agent_rft.serve.inference.model_server import ANSWER_TIMEOUT_S
from agent_rft.spec.job_file import load_job
from agent_rft.spec.operator.operator_file import load_operator
from examples.ledger import make_data, server
from tests.contracts.manifests import (
    AGENT_PORT,
    CLUSTERS,
    JOB_SECRETS,
    METRICS_PORT,
    OVERLAYS,
    ROOT,
    Object,
    cluster_spec,
    containers,
    image_environment,
    matches,
    of_kind,
    one,
    pod_specs,
    ray_pods,
    rendered,
)

KUBERNETES = ("1.31", "1.37")
NO_SCHEMA = {"PodMonitor", "PrometheusRule", "Gateway", "HTTPRoute", "CiliumNetworkPolicy"}
"""Kinds of the Prometheus operator, the Gateway API and Cilium, without a schema here."""
IMAGE = "/opt/agent-rft/"
SECRETS = {"agent-rft", "agent-rft-server", "agent-rft-tls"}
MAX_APPLIED_BYTES = 2**18
"""`kubectl apply` stores the object in an annotation, whose size Kubernetes limits to this."""
READ_AHEAD = ["python", "-m", read_ahead.__name__]
DASHBOARD_PATHS = {8265: "/api/gcs_healthz"}
"""Health paths that the dashboard serves without a token, in addition to those of each node's agent."""

overlays = pytest.mark.parametrize("overlay", OVERLAYS)


# -- schemas -----------------------------------------------------------------------------------------------------------


@overlays
@pytest.mark.parametrize("kubernetes", KUBERNETES)
def test_kubernetes_accepts_each_object(overlay: str, kubernetes: str) -> None:
    known = [found for found in rendered(overlay) if found["kind"] not in NO_SCHEMA and found["kind"] not in CLUSTERS]
    assert len(known) > 10
    for found in known:
        kubernetes_validate.validate(found, kubernetes, strict=True)
    for _, _, spec in pod_specs(overlay):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
        kubernetes_validate.validate(pod, kubernetes, strict=True)


@overlays
def test_kuberay_accepts_each_cluster(overlay: str) -> None:
    found = [found for found in rendered(overlay) if found["kind"] in CLUSTERS]
    assert sorted(o["kind"] for o in found) == sorted(CLUSTERS)
    for cluster in found:
        kuberay(cluster["kind"]).validate(cluster)


def test_the_schemas_reject_unknown_keys_and_wrong_types() -> None:
    cluster = one("laptop", "RayCluster")
    for wrong in ({"headGroupSpecs": {}}, {"suspend": "yes"}):
        with pytest.raises(jsonschema.ValidationError):
            kuberay("RayCluster").validate({**cluster, "spec": cluster["spec"] | wrong})


@cache
def kuberay(kind: str) -> jsonschema.Draft202012Validator:
    packed = Path(__file__).parent / "kuberay" / f"{kind}.v1.schema.json.gz"
    return jsonschema.Draft202012Validator(strict(json.loads(gzip.decompress(packed.read_bytes()))))


def strict(schema: Any) -> Any:
    """The schema with unknown keys forbidden wherever it lists properties, as a cluster enforces it."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: strict(value) for key, value in schema.items()}
    free = schema.get("x-kubernetes-preserve-unknown-fields", False)
    if isinstance(schema.get("properties"), dict) and "type" in schema and not free:
        inner.setdefault("additionalProperties", False)
    return inner


@overlays
def test_the_three_clusters_have_the_same_pods(overlay: str) -> None:
    job, service, cluster = (cluster_spec(one(overlay, kind)) for kind in ("RayJob", "RayService", "RayCluster"))
    assert cluster.pop("suspend") is True
    for spec in (job, service):
        assert set(spec) == set(cluster)
    engine = job["workerGroupSpecs"][0]["template"]["metadata"]["labels"]
    assert engine.pop("agent-rft/cluster") == "job"
    assert [g["template"] for g in job["workerGroupSpecs"]] == [g["template"] for g in cluster["workerGroupSpecs"]]
    engine["agent-rft/cluster"] = "job"
    assert {g["minReplicas"] for g in service["workerGroupSpecs"]} == {0}
    cluster["suspend"] = True


# -- KubeRay's own rules, which its schemas do not contain -------------------------------------------------------------


@overlays
def test_kuberay_does_not_refuse_a_group_of_pods(overlay: str) -> None:
    """As `ValidateRayClusterSpec` of its operator: a RayJob that breaks a rule has failed for good."""
    for kind in CLUSTERS:
        for pod in ray_pods(cluster_spec(one(overlay, kind))):
            in_parameters = {"num-cpus", "num-gpus", "memory", "resources"} & set(pod.parameters)
            assert not (in_parameters and pod.resources), f"{pod.group}: resources are set in two places"
            assert "labels" not in pod.parameters, f"{pod.group}: labels belong to the group itself"
            assert pod.spec.get("restartPolicy", "Never") == "Never"  # the autoscaler's version 2 requires it


@overlays
def test_no_two_objects_get_the_same_secret_or_service_from_kuberay(overlay: str) -> None:
    """A RayCluster gets a Secret of its own name and a service `NAME-head-svc`; a RayService gets that service, too."""
    cluster, service = (one(overlay, kind)["metadata"]["name"] for kind in ("RayCluster", "RayService"))
    assert cluster not in SECRETS
    services = [f"{cluster}-head-svc", f"{service}-head-svc", f"{service}-serve-svc"]
    services += [found["metadata"]["name"] for found in of_kind(overlay, "Service")]
    assert len(set(services)) == len(services)


@overlays
def test_ray_does_not_start_without_a_token(overlay: str) -> None:
    """An operator before 1.6 gives pods no token: `ray start` then has to fail rather than open every port."""
    for kind in CLUSTERS:
        for pod in ray_pods(cluster_spec(one(overlay, kind))):
            assert {"name": "RAY_AUTH_MODE", "value": "token"} in pod.container["env"], pod.group


@overlays
def test_pods_without_a_run_end_within_ten_seconds_of_sigterm(overlay: str) -> None:
    """By default an engine's pod takes 31 s, and the autoscaler of a head's pod 75 s."""
    for kind in CLUSTERS:
        spec = cluster_spec(one(overlay, kind))
        waits = {variable["name"]: float(variable["value"]) for variable in spec["autoscalerOptions"]["env"]}
        assert waits["RAY_gcs_rpc_server_reconnect_timeout_s"] <= 5
        for pod in ray_pods(spec):
            environment = {variable["name"]: variable["value"] for variable in pod.container["env"]}
            assert float(environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]) <= 5


@overlays
def test_each_pod_reads_rays_files_before_ray_starts(overlay: str) -> None:
    """`ray start` gives up on a node that has not registered after 30 s, as on a disk that is still cold."""
    for kind in CLUSTERS:
        for pod in ray_pods(cluster_spec(one(overlay, kind))):
            assert pod.spec["initContainers"][0]["command"] == READ_AHEAD
    read_node_programs()  # all of its modules exist


@overlays
def test_a_second_apply_changes_nothing(overlay: str) -> None:
    """`kubectl apply` reports `configured` each time if it leaves out what Kubernetes fills in."""
    for policy in of_kind(overlay, "NetworkPolicy"):
        for rule in (*policy["spec"].get("ingress", []), *policy["spec"].get("egress", [])):
            assert all("protocol" in port for port in rule.get("ports", [])), policy["metadata"]["name"]
    for policy in of_kind(overlay, "ValidatingAdmissionPolicy"):
        assert all("scope" in rule for rule in policy["spec"]["matchConstraints"]["resourceRules"])
    for kind in CLUSTERS:
        spec = cluster_spec(one(overlay, kind))
        assert all("numOfHosts" in group for group in spec["workerGroupSpecs"]), kind
        for pod in ray_pods(spec):
            assert all("protocol" in port for each in pod.spec["containers"] for port in each.get("ports", [])), kind


@overlays
def test_tools_in_the_cluster_outlive_a_node(overlay: str) -> None:
    for deployment in of_kind(overlay, "Deployment"):
        assert deployment["spec"]["replicas"] > 1
        pod = deployment["spec"]["template"]["spec"]
        (spread,) = pod["topologySpreadConstraints"]
        assert spread["topologyKey"] == "kubernetes.io/hostname"
        assert spread["labelSelector"] == deployment["spec"]["selector"]
        assert {toleration["tolerationSeconds"] for toleration in pod["tolerations"]} == {5}


# -- references --------------------------------------------------------------------------------------------------------


@overlays
def test_commands_exist_in_the_image(overlay: str) -> None:
    entrypoint = one(overlay, "RayJob")["spec"]["entrypoint"]
    name, command, *arguments = entrypoint.split()
    assert name == "agent-rft"
    parsed = get_command(app).commands[command].make_context(command, arguments)  # type: ignore[attr-defined]
    assert parsed.params["run_folder"] == Path("/var/lib/agent-rft/runs/job")
    assert parsed.params["resume"] is None
    for deployment in of_kind(overlay, "Deployment"):
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        assert container["command"] == ["python", "-m", "examples.ledger.server"]
        options = server._parser().parse_args(container["args"])
        declared = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert declared == {"tools": options.tools_port, "grader": options.grader_port}
    for _, _, spec in pod_specs(overlay):
        first, *others = spec.get("initContainers", [{"command": READ_AHEAD}])
        assert first["command"] == READ_AHEAD
        for container in others:
            assert container["command"] == ["bash", "-ec"]
            download, data = container["args"][0].split(" && ")
            assert download.split()[:2] == ["hf", "download"]
            assert Path(sys.executable).with_name("hf").exists()
            assert data.split()[:4] == ["python", "-m", make_data.__name__, "--instructed"]


@overlays
def test_ray_start_knows_its_options(overlay: str) -> None:
    known = {option for parameter in start.params for option in parameter.opts}
    for kind in CLUSTERS:
        for pod in ray_pods(cluster_spec(one(overlay, kind))):
            command = pod.ray_start("head:6379", {})[-1]
            assert set(re.findall(r"--[a-z-]+", command)) <= known
        assert cluster_spec(one(overlay, kind))["rayVersion"] == version("ray")


@overlays
def test_images_have_the_tag_of_this_version(overlay: str) -> None:
    kind = "cpu" if overlay.startswith("laptop") else "gpu"
    images = {c["image"] for _, _, spec in pod_specs(overlay) for c in containers(spec)}
    assert images == {f"agent-rft:{version('agent-rft')}-{kind}"}


@overlays
def test_folders_that_the_image_writes_to_are_on_volumes(overlay: str) -> None:
    written = ("HOME", "HF_HOME", "VLLM_CACHE_ROOT", "AGENT_RFT_FOLDER")
    folders = [*(image_environment()[name] for name in written), "/tmp/ray", "/dev/shm"]
    for name, _, spec in pod_specs(overlay):
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in containers(spec):
            mounts = [Path(mount["mountPath"]) for mount in container["volumeMounts"] if not mount.get("readOnly")]
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            wanted = folders if container["name"].startswith("ray-") else ["/tmp"]
            for folder in wanted:
                assert any(Path(folder).is_relative_to(mount) for mount in mounts), f"{name}: {folder}"


@overlays
def test_the_code_can_load_the_configuration(overlay: str, tmp_path: Path) -> None:
    data = one(overlay, "ConfigMap", "agent-rft")["data"]
    for name, text in data.items():
        (tmp_path / name).write_text(text)
    operator = load_operator(tmp_path / "agent-rft.yaml")
    private = set(re.findall(r"http://([^/]+)", (tmp_path / "job.yaml").read_text()))
    assert private == {str(entry) for entry in operator.allowed_networks}
    job = load_job(tmp_path / "job.yaml", dict.fromkeys(JOB_SECRETS, "secret"))
    for path in filter(None, (job.model, job.training_file, job.validation_file, job.test_file)):
        if path.startswith(IMAGE):
            assert (ROOT / path.removeprefix(IMAGE)).exists(), path
        else:
            assert path.startswith("/var/lib/agent-rft/") or path == job.model, path
    for _, _, spec in pod_specs(overlay):
        for container in containers(spec):
            for path in re.findall(r"/etc/agent-rft/([\w.-]+)", json.dumps(container)):
                assert path in data
    assert "/etc/agent-rft/job.yaml" in one(overlay, "RayJob")["spec"]["entrypoint"]


@overlays
def test_our_code_or_rays_reads_each_environment_variable(overlay: str) -> None:
    folders = [ROOT / name for name in ("agent_rft", "serve", "cluster", "actors", "trainer", "examples")]
    sources = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    for _, _, spec in pod_specs(overlay):
        for container in containers(spec):
            for variable in container.get("env", []):
                assert variable["name"] in sources or hasattr(ray_constants, variable["name"])
    for name in image_environment():
        if name.startswith("AGENT_RFT"):
            assert name in sources


@overlays
def test_secrets_are_only_referenced_and_the_guide_creates_them(overlay: str) -> None:
    assert not of_kind(overlay, "Secret")
    text = json.dumps(rendered(overlay))
    pairs = set(re.findall(r'"secretRef": {"name": "([\w-]+)"|"secretKeyRef": {"key": "\w+", "name": "([\w-]+)"', text))
    certificates = {
        reference["name"]
        for gateway in of_kind(overlay, "Gateway")
        for listener in gateway["spec"]["listeners"]
        for reference in listener["tls"]["certificateRefs"]
    }
    flat = {name for pair in pairs for name in pair if name} | certificates
    assert flat <= SECRETS
    guide = (ROOT / "docs/kubernetes.md").read_text()
    for name in flat:
        assert re.search(rf"create secret (generic|tls) {name}\b", guide), f"the guide does not create {name}"
    variables = set(re.findall(r"\$\{(\w+)\}", one(overlay, "ConfigMap", "agent-rft")["data"]["job.yaml"]))
    for name in variables:
        assert f"--from-literal={name}=" in guide


@overlays
def test_the_serve_configuration_builds_the_application(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built as Ray Serve does it. Several replicas need PostgreSQL, whose URL the Secret provides."""
    monkeypatch.setenv("AGENT_RFT_DATABASE", "postgresql://user:password@host/name")
    config = ServeDeploySchema.model_validate(yaml.safe_load(one(overlay, "RayService")["spec"]["serveConfigV2"]))
    (application,) = config.applications
    built = call_user_app_builder_with_args_if_necessary(import_attr(application.import_path), application.args)
    assert isinstance(built, Application)
    options = built._bound_deployment.ray_actor_options
    assert (
        options["num_cpus"] > 0 or options["label_selector"] == AVOID_PYTHON_GRADERS
    )  # not on the nodes of python graders
    assert config.http_options.port in ports_of(one(overlay, "RayService"))
    assert application.args["folder"] == image_environment()["AGENT_RFT_FOLDER"]


@overlays
def test_services_and_probes_use_ports_that_something_listens_on(overlay: str) -> None:
    listening = {METRICS_PORT, AGENT_PORT, *DASHBOARD_PATHS}
    for kind in CLUSTERS:
        listening |= ports_of(one(overlay, kind))
    for _, _, spec in pod_specs(overlay):
        for container in containers(spec):
            own = {port["containerPort"] for port in container.get("ports", [])}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                action = container.get(probe, {})
                if "tcpSocket" in action:
                    assert action["tcpSocket"]["port"] in own
                elif "httpGet" in action:
                    port, path = action["httpGet"]["port"], action["httpGet"]["path"]
                    assert DASHBOARD_PATHS.get(port) == path or (port == AGENT_PORT and path in PUBLIC_EXACT_PATHS)
    for service in of_kind(overlay, "Service"):
        pod = next(spec for _, labels, spec in pod_specs(overlay) if matches(service["spec"]["selector"], labels))
        names = {port["name"]: port["containerPort"] for c in containers(pod) for port in c["ports"]}
        for port in service["spec"]["ports"]:
            assert names[port["targetPort"]] == port["port"]


@pytest.mark.parametrize("overlay", ["production"])
def test_the_gateway_routes_to_the_api_and_lets_long_streams_end(overlay: str) -> None:
    gateway, route = (one(overlay, kind) for kind in ("Gateway", "HTTPRoute"))
    assert {found["apiVersion"] for found in (gateway, route)} == {"gateway.networking.k8s.io/v1"}
    (listener,) = gateway["spec"]["listeners"]
    assert (listener["protocol"], listener["tls"]["mode"]) == ("HTTPS", "Terminate")
    assert route["spec"]["parentRefs"] == [{"name": gateway["metadata"]["name"], "sectionName": listener["name"]}]
    assert route["spec"]["hostnames"] == [listener["hostname"]]
    (rule,) = route["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    assert backend["name"] == f"{one(overlay, 'RayService')['metadata']['name']}-serve-svc"  # KubeRay's name for it
    assert backend["port"] in ports_of(one(overlay, "RayService"))
    for limit in ("request", "backendRequest"):  # a gateway's own is often 15 s
        assert int(rule["timeouts"][limit].removesuffix("s")) > ANSWER_TIMEOUT_S
    assert not of_kind(overlay, "Ingress") and "nginx" not in json.dumps(rendered(overlay))


def ports_of(owner: Object) -> set[int]:
    return {p["containerPort"] for pod in ray_pods(cluster_spec(owner)) for p in pod.container["ports"]}


def test_every_dashboard_reaches_grafana() -> None:
    found = one("production", "ConfigMap", "agent-rft-dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert len(json.dumps(found)) < MAX_APPLIED_BYTES
    dashboards = {name: json.loads(text) for name, text in found["data"].items()}
    assert dashboards == {f"{dashboard.name}.json": dashboard_json(dashboard) for dashboard in DASHBOARDS}


def test_prometheus_scrapes_ports_that_exist_and_that_it_may_reach() -> None:
    monitor = one("production", "PodMonitor")["spec"]
    (policy,) = [
        p["spec"] for p in of_kind("production", "NetworkPolicy") if p["metadata"]["name"] == "from-prometheus"
    ]
    let_in = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    for kind in CLUSTERS:
        for pod in ray_pods(cluster_spec(one("production", kind))):
            assert matches(monitor["selector"]["matchLabels"], pod.labels)
            ports = {port["name"]: port["containerPort"] for port in pod.container["ports"]}
            assert {ports[endpoint["port"]] for endpoint in monitor["podMetricsEndpoints"]} == let_in
    (own,) = [endpoint for endpoint in monitor["podMetricsEndpoints"] if endpoint["port"] == "rft-metrics"]
    assert own["honorLabels"] is True  # otherwise Prometheus overwrites our label `job`
    assert one("production", "PrometheusRule")["spec"]["groups"]
