"""Connection to a running Ray cluster, or to a local cluster that ends with this process."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil
import ray
from ray.job_config import JobConfig

from agent_rft.actors.runtime.cpu_cores import count_usable_cores
from agent_rft.actors.runtime.telemetry.exporter import HOST as METRICS_HOST
from agent_rft.actors.runtime.telemetry.temporary_folder import short_temporary_folder
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.cluster.ray_cluster.live_nodes import read_live_nodes
from agent_rft.cluster.ray_cluster.loopback import loopback_variables, protect_token, use_loopback
from agent_rft.cluster.ray_cluster.ray_internals import (
    exclude_driver_path,
    ray_command,
    read_submitted_job,
    suppress_death_messages,
)
from agent_rft.errors import InvalidJob, Problem, RftError

CONNECT_TIMEOUT_S = 10.0
NOT_STARTED = "Ray could not be started on this machine"
START_TIMEOUT_S, KILL_TIMEOUT_S = 60.0, 5.0
LOG_END_BYTES = 2_000
HOME_PREFIX = "rft-"
CLUSTER_VARIABLE = "AGENT_RFT_CLUSTER"
"""Environment variable that marks every process of a local cluster. Its value is the cluster's folder."""
PR_SET_PDEATHSIG = 1
ADDRESS_FIX = "give HOST:PORT of a running cluster, or leave out --address and RAY_ADDRESS to start a local one"
TOKEN_FIX = (
    "give HOST:PORT of a running cluster. If the cluster requires a token, set RAY_AUTH_MODE=token and provide the "
    "token in ~/.ray/auth_token or RAY_AUTH_TOKEN. A cluster requires a token if `ray start` found ~/.ray/auth_token"
)
NICENESS = "RAY_worker_niceness"
"""Environment variable for the niceness of Ray's workers. The default of 15 gives other processes priority."""


def is_local_address(address: str | None) -> bool:
    """Return whether the cluster at `address` is reached through the loopback address. None means a local cluster."""
    return address is None or address.startswith(("127.", "localhost:"))


@contextmanager
def ray_session(address: str | None) -> Iterator[list[Node]]:
    """Context manager that connects to the cluster at `address`, or starts a local one, and yields its nodes.

    A local cluster has this computer's cores and GPUs and leaves no process behind.

    Raises:
        InvalidJob: No cluster answers at `address`.
        RftError: The local cluster did not start.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    suppress_death_messages()
    if address is not None:
        _check_reachable(address)
        yield from _session(address)
        return
    protect_token()
    os.environ.setdefault(NICENESS, "0")
    with short_temporary_folder(), use_loopback():
        yield from _session(address)


def _session(address: str | None) -> Iterator[list[Node]]:
    try:
        with _block_hangups():
            ray.init(
                address=address or "local",
                include_dashboard=False if address is None else None,
                logging_level=logging.ERROR,
                log_to_driver=False,
                configure_logging=False,
                job_config=job_config(),
                runtime_env=worker_environment(),
                **({} if address else {"num_cpus": count_usable_cores()}),
            )
    except Exception as error:  # Ray raises plain Exceptions
        if address is not None:
            raise _no_cluster_error(address, str(error), TOKEN_FIX) from error
        raise RftError(f"{NOT_STARTED}: {error}", public_message=NOT_STARTED) from error
    try:
        yield read_live_nodes()
    finally:
        ray.shutdown()


def job_config() -> JobConfig:
    """Return the settings of a Ray job whose workers do not search the driver's folders for modules.

    Otherwise a user's module next to the job, such as `trainer.py`, could be imported in place of agent-rft's.
    """
    config = JobConfig()
    exclude_driver_path(config)
    return config


def worker_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str] | None:
    """Return the runtime environment of the workers, or None for Ray's default.

    With `ray job submit --working-dir`, a setup hook removes the working directory from the module search path. Its
    modules could otherwise be imported in place of agent-rft's modules.
    """
    if "working_dir" not in (read_submitted_job(environment).get("runtime_env") or {}):
        return None
    return {"worker_process_setup_hook": "agent_rft.__main__.remove_working_directory"}


@contextmanager
def _block_hangups() -> Iterator[None]:
    """Context manager that blocks SIGHUP in this process and in the child processes that it starts.

    When a terminal closes, all processes of a local cluster receive SIGHUP. Without the block, they would end before
    the run has saved a checkpoint.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def job_cluster(
    address: str | None, owner_file: Path | None = None, on_starting: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Context manager that connects to the cluster at `address`, or starts a local cluster that accepts Ray jobs.

    A local cluster requires a token (see `local_token`). It ends with this process, even if the process is killed.

    Args:
        address: HOST:PORT of a running cluster; None starts a local one.
        owner_file: File that records the owner and the folder of a local cluster, for `kill_leftover_cluster`.
        on_starting: Called while a local cluster starts.

    Raises:
        InvalidJob: No cluster answers at `address`.
        RftError: The local cluster did not start.
    """
    if address is not None:
        with ray_session(address):
            yield
        return
    # `ray.init` would use a fixed port for the agent that accepts jobs, which other clusters may use too.
    port, dashboard, agent = free_ports(3)
    options = [f"--port={port}", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"]
    options += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--num-cpus={count_usable_cores()}"]
    command = [*ray_command(), "start", "--head", "--block", "--disable-usage-stats"]
    # A separate folder, because in Ray's shared folder other programs would find this cluster's address and connect.
    with (
        short_temporary_folder(),
        tempfile.TemporaryFile() as log,
        tempfile.TemporaryDirectory(prefix=HOME_PREFIX, ignore_cleanup_errors=True) as folder,
    ):
        options.append(f"--temp-dir={folder}")
        # In a separate process session, so that Ctrl-C reaches only this process and the cluster lives until it ends.
        head = subprocess.Popen(
            [*command, *options],
            stdout=log,
            stderr=log,
            # By default the cluster's processes would serve metrics on the public address.
            env={METRICS_HOST: "127.0.0.1", NICENESS: "0"}
            | os.environ
            | loopback_variables(os.environ)
            | {CLUSTER_VARIABLE: folder},
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        try:
            if owner_file is not None:
                owner_file.write_text(json.dumps({"owner": _process_identity(os.getpid()), "folder": folder}))
            on_starting()
            _wait_for_head(head, port, log)
            with use_loopback(), ray_session(f"127.0.0.1:{port}"):
                yield
        finally:
            _kill_head(head)


def kill_leftover_cluster(owner_file: Path) -> None:
    """Kill the remaining processes of a local cluster whose owner was killed, and delete the cluster's folder.

    The processes are recognized by CLUSTER_VARIABLE in their environment. Without this function, they would hold ports
    and memory for up to a minute.
    """
    try:
        cluster = json.loads(owner_file.read_text())
        owner, folder = _find_process(*cluster["owner"]), Path(cluster["folder"])
    except (OSError, ValueError, TypeError, KeyError):  # the note is missing, or its owner was killed while writing
        return
    if owner is None and folder.name.startswith(HOME_PREFIX):
        _kill([process for process in psutil.process_iter() if _cluster_folder(process) == str(folder)])
        shutil.rmtree(folder, ignore_errors=True)


def _cluster_folder(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(CLUSTER_VARIABLE)
    except psutil.Error:  # the process has exited, or belongs to another user
        return None


def _process_identity(pid: int) -> tuple[int, float]:
    return pid, psutil.Process(pid).create_time()


def _find_process(pid: int, created: float) -> psutil.Process | None:
    """Return the process with this PID and creation time; None if it ended, even if its PID was reused."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def _list_descendants(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, KILL_TIMEOUT_S)


def _wait_for_head(head: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while head.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    log.seek(0)
    output = log.read()[-LOG_END_BYTES:].decode(errors="replace")
    raise RftError(f"{NOT_STARTED}: {output}", public_message=NOT_STARTED)


def _kill_head(head: subprocess.Popen[bytes]) -> None:
    """Kill a head node and all its child processes.

    A graceful stop would take most of a minute, and there is no state to save.
    """
    if head.poll() is None:
        process = psutil.Process(head.pid)
        _kill([*_list_descendants(process), process])
    head.wait()


def free_ports(count: int) -> list[int]:
    """Return `count` different ports of the loopback address that are free now."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


def _end_with_parent() -> None:
    """Make the kernel send SIGTERM to this child process when its parent ends, even if the parent is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def why_unreachable(address: str) -> str | None:
    """Return why the head of a cluster cannot be reached at `address`; None if it can be reached.

    Keywords of Ray, such as `auto`, are not checked; the result is None.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():  # "auto", "local"
        return None
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _check_reachable(address: str) -> None:
    """Raise InvalidJob if nothing listens at `address`. Ray would retry for two minutes and then exit the process."""
    if (why := why_unreachable(address)) is not None:
        raise _no_cluster_error(address, why)


def _no_cluster_error(address: str, why: str, fix: str = ADDRESS_FIX) -> InvalidJob:
    return InvalidJob(
        "cannot connect to the Ray cluster", [Problem("no_cluster", "--address", f"{address}: {why}", fix)]
    )
