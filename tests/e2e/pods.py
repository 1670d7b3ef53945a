"""A stand-in for KubeRay, which runs a RayJob or a RayService: `python -m tests.e2e.pods rayjob FOLDER`.

It must be root in its own network, mount and PID namespaces. All pods share that network: each has its own address, and
workers have different ports where KubeRay gives all the same ones.

FOLDER/state is the volume, FOLDER/config the ConfigMap, FOLDER/secrets.json {Secret: {key: value}}, and FOLDER/logs
receives the output of the pods.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.contracts.manifests import (
    AGENT_PORT,
    GCS_PORT,
    METRICS_PORT,
    RayPod,
    cluster_spec,
    image_environment,
    one,
    quantity,
    ray_pods,
)
from tests.e2e.pod import IMAGE, SOURCES, PodSpec, Volume

OVERLAY = "laptop"
NETWORK = "10.244.0"
HEAD = f"{NETWORK}.2"
DASHBOARD, API = f"http://{HEAD}:8265", f"http://{HEAD}:8000"
LEDGER = f"{NETWORK}.9"
TOKEN = "a-token-that-KubeRay-makes"
WAIT_S = 400.0
SIOCSIFADDR, SIOCSIFFLAGS, IFF_UP = 0x8916, 0x8914, 1


def main() -> None:
    scenario, folder = sys.argv[1], Path(sys.argv[2])
    _network([HEAD, f"{NETWORK}.3", f"{NETWORK}.4", LEDGER])
    (folder / "logs").mkdir()
    cluster = Pods(folder)
    print(json.dumps({"rayjob": rayjob, "rayservice": rayservice}[scenario](cluster, folder)))


def rayjob(pods: Pods, folder: Path) -> dict[str, Any]:
    """An invalid job, and one that goes on after its cluster was killed, and after its pods were evicted."""
    job = one(OVERLAY, "RayJob")
    spec = cluster_spec(job)
    deployment = one(OVERLAY, "Deployment")["spec"]["template"]["spec"]
    container = deployment["containers"][0]
    pods.start("ledger", deployment, [*container["command"], *container["args"]])
    pods.start_cluster(spec, "first")
    _until(lambda: _listens(LEDGER, 8002), "the ledger's servers")
    invalid = job["spec"] | {"entrypoint": job["spec"]["entrypoint"].replace("job.yaml", "agent-rft.yaml")}
    _submit({"spec": invalid}, "invalid")
    _until(lambda: _ended("invalid"), "the end of the invalid job")
    found = {"invalid": _info("invalid")}
    _submit(job, "first")
    checkpoints = folder / "state" / "runs" / "job" / "checkpoints"

    def saved() -> int:
        return max((int(path.name[-6:]) for path in checkpoints.glob("step-??????")), default=0)

    _until(lambda: saved() or _ended("first"), "a checkpoint", partial(_log, "first"))
    pods.kill("first")
    before = saved()
    pods.start_cluster(spec, "second")
    _submit(job, "second")
    _until(lambda: saved() > before or _ended("second"), "a further checkpoint", partial(_log, "second"))
    hooks = [pods.pre_stop(f"second-{pod.group}", pod) for pod in ray_pods(spec) if "lifecycle" in pod.container]
    found["hooks"] = [hook.wait() for hook in hooks]
    _until(lambda: _ended("second"), "Ray's word about the end", partial(_log, "second"))
    found["second"] = _info("second")
    pods.kill("second")
    pods.start_cluster(spec, "third")
    _submit(job, "third")
    _until(lambda: _ended("third"), "the job's end", partial(_log, "third"))
    return found | {"third": _info("third")}


def rayservice(pods: Pods, folder: Path) -> dict[str, Any]:
    service = one(OVERLAY, "RayService")
    spec = cluster_spec(service)
    pods.start_cluster(spec, "service")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    _ask("PUT", f"{DASHBOARD}/api/serve/applications/", config)
    state = partial(_ask, "GET", f"{DASHBOARD}/api/serve/applications/")
    _until(lambda: _ask("GET", f"{API}/health")[0] == 200, "the API", state)
    head = next(ray_pods(spec))
    made = pods.start("exec", head.spec, ["agent-rft", "keys", "create", "test", "--scope", "admin"])
    code = made.wait()
    key = (folder / "logs" / "exec.log").read_text().split()[-1]
    return {
        "health": _ask("GET", f"{API}/-/healthz")[0],
        "keys create": code,
        "without a key": _ask("GET", f"{API}/v1/models", key="none")[0],
        "models": _ask("GET", f"{API}/v1/models", key=key),
    }


class Pods:
    """The running containers; all of them end with this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._secrets: dict[str, dict[str, str]] = json.loads((folder / "secrets.json").read_text())
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start_cluster(self, spec: Any, name: str) -> None:
        """Starts the head and the initial workers, and waits until their probes succeed."""
        head, *workers = ray_pods(spec)
        nodes = [head, *(worker for worker in workers if worker.replicas)]
        assert all(worker.replicas == 1 for worker in nodes[1:])
        for ready, what in [self._start_node(node, name, i) for i, node in enumerate(nodes)]:
            _until(ready, what)

    def _start_node(self, pod: RayPod, name: str, i: int) -> tuple[Callable[[], bool], str]:
        """Starts a node and returns a function that says whether it is ready, and the node's name."""
        address = f"{NETWORK}.{2 + i}"
        also = {
            "node-ip-address": address,
            "dashboard-agent-listen-port": str(AGENT_PORT + i),
            "metrics-export-port": str(METRICS_PORT + i),
        }
        command = pod.ray_start(f"{HEAD}:{GCS_PORT}" if i else None, also)
        running = self.start(f"{name}-{pod.group}", pod.spec, command)

        def passes(probe: str) -> bool:
            get = pod.container[probe]["httpGet"]
            return _ask("GET", f"http://{address}:{get['port'] + i}{get['path']}", key="")[0] == 200

        def ready() -> bool:
            nonlocal running
            if running.poll() is not None:  # Ray waits only 30 s for its own start; KubeRay then makes another pod
                running = self.start(f"{name}-{pod.group}", pod.spec, command)
            return all(passes(probe) for probe in ("startupProbe", "readinessProbe") if probe in pod.container)

        return ready, f"{name}-{pod.group}"

    def start(self, name: str, spec: Any, command: Sequence[str]) -> subprocess.Popen[str]:
        """Starts a pod's first container with this command."""
        container, context = spec["containers"][0], spec["securityContext"]
        assert container["securityContext"]["readOnlyRootFilesystem"] and context["runAsNonRoot"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        pod = PodSpec(
            command=command,
            environment=self._environment(container),
            volumes=[self._volume(name, mount, volumes[mount["name"]]) for mount in container["volumeMounts"]],
            user=context["runAsUser"],
            group=context["runAsGroup"],
            folder=str(IMAGE),
            hosts={"ledger": LEDGER},
        )
        with (self._folder / "logs" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--fork", sys.executable, "-m", "tests.e2e.pod"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
            )
        assert process.stdin is not None
        process.stdin.write(pod.text())
        process.stdin.close()
        self._running[name] = process
        return process

    def pre_stop(self, name: str, pod: RayPod) -> subprocess.Popen[bytes]:
        """Starts a pod's preStop hook inside its container, as its user."""
        context, command = pod.spec["securityContext"], pod.container["lifecycle"]["preStop"]["exec"]["command"]
        (init,) = self._inits(self._running[name])
        enter = ["nsenter", f"--target={init}", "--mount", "--pid"]
        enter += [f"--setuid={context['runAsUser']}", f"--setgid={context['runAsGroup']}"]
        if os.stat(f"/proc/{init}/ns/user").st_ino != os.stat("/proc/self/ns/user").st_ino:
            enter.append("--user")
        with (self._folder / "logs" / f"{name}-hook.log").open("ab") as log:
            environment = self._environment(pod.container)
            return subprocess.Popen([*enter, "--", *command], env=environment, stdout=log, stderr=log)

    @staticmethod
    def _inits(process: subprocess.Popen[str]) -> list[int]:
        """The first process of a pod."""
        return [int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]

    def kill(self, cluster: str) -> None:
        """Kills a cluster by SIGKILL to each pod's init process, with which the kernel ends the pod's others."""
        for name, process in self._running.items():
            if name.startswith(cluster):
                for child in self._inits(process):
                    os.kill(child, signal.SIGKILL)
                process.wait()

    def _environment(self, container: Any) -> dict[str, str]:
        found = image_environment() | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        found["PATH"] = found["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin")
        found["PYTHONPATH"] = f"{IMAGE}/{SOURCES}"
        for source in container.get("envFrom", []):
            found |= self._secrets[source["secretRef"]["name"]]
        for variable in container.get("env", []):
            if "value" in variable:
                found[variable["name"]] = variable["value"]
            else:
                key = variable["valueFrom"]["secretKeyRef"]
                found[variable["name"]] = self._secrets[key["name"]][key["key"]]
        return found

    def _volume(self, pod: str, mount: Any, volume: Any) -> Volume:
        path, read_only = mount["mountPath"], mount.get("readOnly", False)
        if "persistentVolumeClaim" in volume:
            return Volume(path, str(self._folder / "state"), read_only)
        if "configMap" in volume:
            return Volume(path, str(self._folder / "config"), True)
        return Volume(path, size_bytes=quantity(volume["emptyDir"]["sizeLimit"]))


# -- requests ----------------------------------------------------------------------------------------------------------


def _submit(job: Any, name: str) -> None:
    """Submits a job as KubeRay does in HTTPMode."""
    code, text = _ask(
        "POST", f"{DASHBOARD}/api/jobs/", {"entrypoint": job["spec"]["entrypoint"], "submission_id": name}
    )
    assert code == 200, text


def _info(name: str) -> dict[str, Any]:
    """What Ray says of a job; KubeRay retries it if its status is FAILED."""
    code, text = _ask("GET", f"{DASHBOARD}/api/jobs/{name}")
    found = json.loads(text) if code == 200 else {"status": text}
    return {key: found.get(key) for key in ("status", "driver_exit_code", "message")}


def _log(name: str) -> str:
    return _ask("GET", f"{DASHBOARD}/api/jobs/{name}/logs")[1]


def _ended(name: str) -> bool:
    return _info(name)["status"] in ("SUCCEEDED", "FAILED", "STOPPED")


def _ask(method: str, url: str, body: Any = None, key: str = TOKEN) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 1).close()
    except OSError:
        return False
    return True


def _until(condition: Callable[[], bool], what: str, why: Callable[[], object] = str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not within {WAIT_S:g} s\n{why()}")
        time.sleep(0.2)


def _network(addresses: Sequence[str]) -> None:
    """Turns on the loopback device, which is off in a new network namespace, and adds these addresses to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        fcntl.ioctl(device, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
        for i, address in enumerate(addresses):
            packed = struct.pack("16sHH4s16x", f"lo:{i}".encode(), socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(device, SIOCSIFADDR, packed)


if __name__ == "__main__":
    main()
