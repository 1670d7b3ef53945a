"""Connecting to a Ray cluster, or starting a local one that ends with us."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from trainer.errors import InvalidJob, Problem, RftError

CONNECT_TIMEOUT_S = 10.0


@contextmanager
def ray_session(address: str | None, *, with_jobs: bool = False) -> Iterator[dict[str, float]]:
    """The cluster's total resources. A local cluster has this machine's cores and GPUs and leaves no process behind; it
    takes Ray jobs (by its dashboard) where `with_jobs`.

    Raises:
        InvalidJob: nothing answers at `address`.
        RftError: a local cluster did not start.
    """
    # Workers find our packages where the driver has them; a Ray job's working_dir is on the path already.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    # `log_to_driver` leaves the raylet's own paragraphs on each process that died: we tell of those that matter.
    ray._private.worker._worker_logs_enabled = False
    if address is not None:
        _look_for(address)
    try:
        ray.init(
            address=address or "local",
            include_dashboard=with_jobs if address is None else None,
            logging_level=logging.ERROR,
            log_to_driver=False,
            configure_logging=False,
            **({} if address else {"num_cpus": os.cpu_count()}),
        )
    except Exception as error:  # Ray raises bare ones
        if address is not None:
            raise _no_cluster(address, str(error)) from error
        raise RftError(f"Ray did not start on this machine: {error}") from error
    try:
        yield ray.cluster_resources()
    finally:
        ray.shutdown()


def _look_for(address: str) -> None:
    """Ray itself tries for two minutes, then ends the process."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():  # "auto", "local": Ray's own words
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise _no_cluster(address, error.strerror or str(error)) from error


def _no_cluster(address: str, why: str) -> InvalidJob:
    remedy = "give HOST:PORT of a running cluster, or leave --address and RAY_ADDRESS out for a local one"
    return InvalidJob("there is no cluster", [Problem("no_cluster", "--address", f"{address}: {why}", remedy)])
