"""Connecting to a Ray cluster, or starting a local one that ends with us."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil
import ray
from ray.dashboard.utils import ray_address_to_api_server_url

from actors.runtime.exporter import HOST as METRICS_HOST
from cluster.planning.nodes import Node
from cluster.ray_cluster.live_nodes import live_nodes
from trainer.errors import InvalidJob, Problem, RftError

CONNECT_TIMEOUT_S = 10.0
START_TIMEOUT_S, KILL_TIMEOUT_S = 60.0, 5.0
LAST_WORDS_BYTES = 2_000
HOME_PREFIX = "rft-"
MARK = "AGENT_RFT_CLUSTER"
"""In the environment of each process of a local cluster: the cluster's folder."""
PR_SET_PDEATHSIG = 1
ADDRESS_REMEDY = "give HOST:PORT of a running cluster, or leave --address and RAY_ADDRESS out for a local one"
TOKEN_REMEDY = (
    "give HOST:PORT of a running cluster; if it wants a token (`ray start` makes one that does where ~/.ray/auth_token "
    "exists), set RAY_AUTH_MODE=token and have the same token here, in that file or in RAY_AUTH_TOKEN"
)
NICENESS = "RAY_worker_niceness"
"""Of Ray's workers, else 15: whatever else the machine does, tools and driver too, would go before the engines."""


def is_local(address: str | None) -> bool:
    """Whether the cluster at `address` is reached on this machine's own loopback: then it may be nobody else's."""
    return address is None or address.startswith(("127.", "localhost:"))


@contextmanager
def ray_session(address: str | None) -> Iterator[list[Node]]:
    """The cluster's nodes. A local cluster has this machine's cores and GPUs and leaves no process behind.

    Raises:
        InvalidJob: nothing answers at `address`.
        RftError: a local cluster did not start.
    """
    # Workers find our packages where the driver has them; a Ray job's working_dir is on the path already.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    # `log_to_driver` leaves the raylet's own paragraphs on each process that died: we tell of those that matter.
    ray._private.worker._worker_logs_enabled = False
    if address is None:
        os.environ.setdefault(NICENESS, "0")
    else:
        _look_for(address)
    try:
        ray.init(
            address=address or "local",
            include_dashboard=False if address is None else None,
            logging_level=logging.ERROR,
            log_to_driver=False,
            configure_logging=False,
            **({} if address else {"num_cpus": os.cpu_count()}),
        )
    except Exception as error:  # Ray raises bare ones
        if address is not None:
            raise _no_cluster(address, str(error), TOKEN_REMEDY) from error
        raise RftError(f"Ray did not start on this machine: {error}") from error
    try:
        yield live_nodes()
    finally:
        ray.shutdown()


@contextmanager
def job_cluster(
    address: str | None, note: Path | None = None, meanwhile: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """A cluster that takes Ray jobs, to which we are connected. A local one ends with this process, however that ends,
    and nobody without its token may use it (`begin_with_token`). `note`: a file that says whose it is, for
    `end_leftover`. `meanwhile` is done while a local one starts.

    Raises:
        InvalidJob: nothing answers at `address`.
        RftError: a local cluster did not start.
    """
    if address is not None:
        with ray_session(address):
            yield
        return
    # `ray.init` would share the port of the node's agent, which takes jobs, with every other cluster of the machine.
    port, dashboard, agent = free_ports(3)
    options = [f"--port={port}", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"]
    options += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--num-cpus={os.cpu_count()}"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    # A folder of its own: in Ray's common one it would leave word of itself, and others would take it for theirs.
    home = tempfile.TemporaryDirectory(prefix=HOME_PREFIX, ignore_cleanup_errors=True)
    with tempfile.TemporaryFile() as log, home as folder:
        options.append(f"--temp-dir={folder}")
        # In a session of its own: Ctrl-C is for us, and the cluster is to be there until we have ended in good order.
        head = subprocess.Popen(
            [*command, *options],
            stdout=log,
            stderr=log,
            # Its processes know their cluster by the machine's address, and would serve metrics to everybody.
            env={METRICS_HOST: "127.0.0.1", NICENESS: "0", **os.environ, MARK: folder},
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        try:
            if note is not None:
                note.write_text(json.dumps({"owner": _identity(os.getpid()), "folder": folder}))
            meanwhile()
            _wait_for_head(head, port, log)
            with ray_session(f"127.0.0.1:{port}"):
                yield
        finally:
            _end(head)


def end_leftover(note: Path) -> None:
    """End what is left of a local cluster whose owner was killed, its folder included. Its processes are their own
    masters by then: they are known by their environment. Ray takes up to a minute to end them, in which ports and
    memory are not free yet.
    """
    try:
        whose = json.loads(note.read_text())
        owner, folder = _process(*whose["owner"]), Path(whose["folder"])
    except (OSError, ValueError, TypeError, KeyError):  # there is none, or its owner was killed while it wrote
        return
    if owner is None and folder.name.startswith(HOME_PREFIX):
        _kill([process for process in psutil.process_iter() if _cluster_of(process) == str(folder)])
        shutil.rmtree(folder, ignore_errors=True)


def _cluster_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except psutil.Error:  # it is gone, or somebody else's
        return None


def _identity(pid: int) -> tuple[int, float]:
    return pid, psutil.Process(pid).create_time()


def _process(pid: int, created: float) -> psutil.Process | None:
    """The very process, or None where its number is free or somebody else's."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def _family(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, KILL_TIMEOUT_S)


def job_server_of(address: str) -> str:
    """The URL of the job server of the cluster at `address`."""
    url: str = ray_address_to_api_server_url(address)
    return url


def dashboard_address() -> str | None:
    """host:port of the dashboard of the cluster that we are connected to, None if it has none."""
    address: str | None = ray._private.worker.get_dashboard_url()
    return address or None


def begin_with_token() -> None:
    """Run this program anew with a token for a cluster of its own, where it has none: Ray reads it when it is
    imported, so that later is too late.
    """
    if "RAY_AUTH_TOKEN" not in os.environ:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        os.execv(sys.executable, sys.orig_argv)


def _wait_for_head(head: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while head.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    log.seek(0)
    raise RftError(f"Ray did not start on this machine: {log.read()[-LAST_WORDS_BYTES:].decode(errors='replace')}")


def _end(head: subprocess.Popen[bytes]) -> None:
    """End a head and all that it started. Asked to, Ray takes most of a minute, in which it keeps ports and memory, and
    it has nothing to keep.
    """
    if head.poll() is None:
        process = psutil.Process(head.pid)
        _kill([*_family(process), process])
    head.wait()


def free_ports(count: int) -> list[int]:
    """Different ones, on which nobody listens."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


def _end_with_parent() -> None:
    """In the child: SIGTERM when the parent is gone, killed ones included."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _look_for(address: str) -> None:
    """Ray itself tries for two minutes, then ends the process."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():  # "auto", "local": Ray's own words
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise _no_cluster(address, error.strerror or str(error)) from error


def _no_cluster(address: str, why: str, remedy: str = ADDRESS_REMEDY) -> InvalidJob:
    return InvalidJob("there is no cluster", [Problem("no_cluster", "--address", f"{address}: {why}", remedy)])
