"""All uses of undocumented parts of Ray.

The docstring of each function names the part of Ray that the function uses, the reason, and what would make the
function unnecessary. `import ray` does not load some modules of Ray. Functions that need such a module import it
themselves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import ray
from ray._common.tls_utils import add_port_to_grpc_server
from ray._private import ray_constants
from ray._private.state import available_resources_per_node, state
from ray.job_config import JobConfig

Row = Mapping[str, Any]
"""Row of one of Ray's tables. The keys are Ray's column names."""

# -- the cluster -------------------------------------------------------------------------------------------------------


def free_resources() -> dict[str, dict[str, float]]:
    """Return the free resources of each node, by node id.

    Uses: `ray._private.state.available_resources_per_node`.
    Why: `ray.available_resources` returns only the sum of all nodes.
    Remove when: `ray.nodes` contains the free resources.
    """
    free: dict[str, dict[str, float]] = available_resources_per_node()
    return free


def list_actors() -> list[Row]:
    """Return the table of actors, including dead ones.

    Uses: `ray._private.state.state.actor_table`.
    Why: `ray.util.state.list_actors` needs the dashboard, which a local cluster does not have.
    Remove when: list_actors works without a dashboard.
    """
    return list(state.actor_table(None).values())


def list_ray_jobs() -> list[Row]:
    """Return the table of jobs: each driver that is or was connected to the cluster.

    Uses: `ray._private.state.state.job_table`.
    Why: `ray.util.state.list_jobs` needs the dashboard, which a local cluster does not have.
    Remove when: list_jobs works without a dashboard.
    """
    return list(state.job_table())


def is_adding_nodes() -> bool:
    """Return whether the autoscaler is adding a node.

    Uses: `ray.autoscaler.v2.sdk.get_cluster_status`.
    Why: `ray.autoscaler.sdk` can request resources, but does not report pending nodes.
    Remove when: a documented module reports pending nodes.
    """
    from ray.autoscaler.v2.sdk import get_cluster_status

    status = get_cluster_status(ray.get_runtime_context().gcs_address)
    return bool(status.pending_launches or status.pending_nodes)


def store_value(key: str, value: str, namespace: bytes) -> None:
    """Store a string in the cluster's key-value store, replacing an earlier value.

    Uses: `ray.experimental.internal_kv`.
    Why: an actor that stores the string would need a process, and would end when its owner ends.
    Remove when: Ray documents a key-value store.
    """
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(key.encode(), value.encode(), overwrite=True, namespace=namespace)


def load_value(key: str, namespace: bytes) -> str | None:
    """Return the string that `store_value` stored; None if the key is missing.

    Uses: `ray.experimental.internal_kv`.
    Why: as for `store_value`.
    Remove when: as for `store_value`.
    """
    from ray.experimental.internal_kv import _internal_kv_get

    value = _internal_kv_get(key.encode(), namespace=namespace)
    return value.decode() if value else None


# -- addresses ---------------------------------------------------------------------------------------------------------


def job_server_url(address: str) -> str:
    """Return the URL of the job server of the cluster at `address`.

    Uses: `ray.dashboard.utils.ray_address_to_api_server_url`.
    Why: JobSubmissionClient finds the URL too, but only once the job server has answered.
    Remove when: Ray documents how to find the URL.
    """
    from ray.dashboard.utils import ray_address_to_api_server_url

    url: str = ray_address_to_api_server_url(address)
    return url


def dashboard_address() -> str | None:
    """Return host:port of the connected cluster's dashboard; None if the cluster has no dashboard.

    Uses: `ray._private.worker.get_dashboard_url`.
    Why: `ray.init` returns the address only to the caller that connects first.
    Remove when: the runtime context contains the address.
    """
    address: str | None = ray._private.worker.get_dashboard_url()
    return address or None


@contextmanager
def allow_loopback() -> Iterator[None]:
    """Context manager in which Ray accepts 127.0.0.1 as the address of this node.

    Uses: `ray._private.ray_constants.ENABLE_RAY_CLUSTER`.
    Why: Ray reads RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER when it is imported, so setting the variable here is too late.
    Remove when: `ray.init` has a parameter for the address to listen on.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


# -- drivers and jobs --------------------------------------------------------------------------------------------------


def suppress_death_messages() -> None:
    """Suppress the raylet's messages about dead processes in this process's output.

    Uses: `ray._private.worker._worker_logs_enabled`.
    Why: `log_to_driver=False` does not suppress them, and agent-rft reports the deaths that matter.
    Remove when: `log_to_driver=False` suppresses them.
    """
    ray._private.worker._worker_logs_enabled = False


class _NoFolders(list[str]):
    """List that ignores the folders that Ray adds to it. Ray's workers would search these folders for modules."""

    def extend(self, folders: Iterable[str]) -> None:
        """Do nothing. Ray calls this with the working directory and the folder of the driver's command."""


def exclude_driver_path(config: JobConfig) -> None:
    """Remove the driver's folders from the module search path of a Ray job's workers.

    Uses: `JobConfig._py_driver_sys_path`.
    Why: Ray puts the driver's working directory first on the module search path of each worker.
    Remove when: Ray has a setting for this.
    """
    config._py_driver_sys_path = _NoFolders()


def job_status_client(address: str | None = None) -> Any:
    """Return a client whose `put_status` changes the status of a submitted Ray job.

    `address` is the cluster's address; None for the cluster that this process is connected to.

    Uses: `JobInfoStorageClient`, `ray._raylet.GcsClient` and the `gcs_client` of the global worker.
    Why: a job has no other way to change its status message or final status. Ray's job supervisor uses the same client.
    Remove when: JobSubmissionClient has a method that changes the status message of a job.
    """
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
    from ray.dashboard.modules.job.common import JobInfoStorageClient

    if address is not None:
        return JobInfoStorageClient(GcsClient(address=address))
    return JobInfoStorageClient(ray._private.worker.global_worker.gcs_client)


# -- Ray Serve ---------------------------------------------------------------------------------------------------------


def serve_is_running() -> bool:
    """Return whether Ray Serve is running in the cluster that this process is connected to.

    Uses: `ray.serve.context._get_global_client`.
    Why: `ray.serve.status` cannot distinguish a missing Ray Serve from a Ray Serve without proxies and applications.
    Remove when: the status shows whether Ray Serve is running.
    """
    from ray.serve.context import _get_global_client

    return _get_global_client(raise_if_no_controller_running=False) is not None


def serve_address() -> tuple[str, int]:
    """Return the host and port of the proxy of the running Ray Serve.

    Uses: `ray.serve.context._get_global_client`.
    Why: if Ray Serve is already running, `ray.serve.start` ignores its options and does not return the actual address.
    Remove when: `ray.serve.status` reports the host and port.
    """
    from ray.serve.context import _get_global_client

    options = _get_global_client().http_config
    return options.host, options.port


def bind_replica_to_loopback() -> None:
    """Make the internal gRPC port of this process's Ray Serve replica listen only on the loopback address.

    The constructor of a deployment calls this, because Ray Serve opens the port after the constructor.

    Uses: `add_port_to_grpc_server` of `ray.serve._private.replica` and `ray._common.tls_utils`.
    Why: Ray Serve opens the port on all addresses, unpickles what it receives, and checks only Ray's token.
    Remove when: Ray Serve opens the port on the node's address.
    """
    from ray.serve._private import replica

    replica.add_port_to_grpc_server = lambda server, _address: add_port_to_grpc_server(server, "127.0.0.1:0")


# -- programs ----------------------------------------------------------------------------------------------------------


def ray_command() -> Sequence[str]:
    """Return the first arguments of a command that runs the program `ray` with this Python interpreter.

    Uses: the module `ray.scripts.scripts`.
    Why: the program `ray` may be missing on the PATH or belong to another environment. The option `-P` prevents
    Python from importing a user's files from the working directory.
    Remove when: `python -m ray` works.
    """
    return sys.executable, "-P", "-m", "ray.scripts.scripts"


def read_submitted_job(environment: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the configuration of the Ray job that started this process; empty outside a Ray job.

    Uses: the environment variable RAY_JOB_CONFIG_JSON_ENV_VAR.
    Why: before `ray.init`, `ray.get_runtime_context` has neither the submission id nor the runtime environment.
    Remove when: Ray documents how an entry point finds its job.
    """
    found: dict[str, Any] = json.loads(environment.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    return found


def read_node_programs() -> None:
    """Import the modules and read the programs that the processes of a node use, so that the disk cache contains them.

    Uses: the modules of the dashboard and its agents; GCS_SERVER_EXECUTABLE and RAYLET_EXECUTABLE.
    Why: see `agent_rft.cluster.ray_cluster.read_ahead`.
    Remove when: `ray start` has an option for the time that a node may take to register.
    """
    from ray._private.services import GCS_SERVER_EXECUTABLE, RAYLET_EXECUTABLE

    for name in (
        "ray.scripts.scripts",
        "ray.dashboard.dashboard",
        "ray.dashboard.agent",
        "ray.dashboard.modules.aggregator.aggregator_agent",
        "ray.dashboard.modules.job.job_agent",
        "ray.dashboard.modules.reporter.reporter_agent",
        "ray._private.runtime_env.agent.runtime_env_agent",
    ):
        import_module(name)
    for program in (GCS_SERVER_EXECUTABLE, RAYLET_EXECUTABLE):
        Path(program).read_bytes()
