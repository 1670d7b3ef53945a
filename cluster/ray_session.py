"""Connecting to a Ray cluster, or starting a local one that ends with us."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray


@contextmanager
def ray_session(address: str | None) -> Iterator[dict[str, float]]:
    """The cluster's total resources. A local cluster has this machine's cores and GPUs and leaves no process behind."""
    # Workers find our packages where the driver has them; a Ray job's working_dir is on the path already.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(
        address=address or "local",
        include_dashboard=False if address is None else None,
        logging_level=logging.ERROR,
        log_to_driver=False,
        configure_logging=False,
        **({} if address else {"num_cpus": os.cpu_count()}),
    )
    try:
        yield ray.cluster_resources()
    finally:
        ray.shutdown()
