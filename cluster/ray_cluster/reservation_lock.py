"""Lock that a job holds while it chooses and reserves GPUs, so that two jobs of a cluster never choose the same GPUs.

The holder of the lock owns an actor whose name Ray allows only once per cluster. Ray frees the name when the holder's
driver ends, even if the driver is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import ray

NAME, NAMESPACE = "reserves-gpus", "agent-rft"
MAX_WAIT_S = 120.0
"""Maximum seconds to wait for the lock. After this time, the job continues without the lock.

The holder of the lock has probably failed by then.
"""
POLL_S = 0.25


class _Holder:
    """Actor that exists as long as the lock is held."""


def take_lock() -> Any | None:
    """Take the lock and return its actor; None if another job holds the lock."""
    try:
        return ray.remote(_Holder).options(name=NAME, namespace=NAMESPACE, num_cpus=0).remote()
    except ValueError:  # Ray: the name is taken
        return None


@asynccontextmanager
async def reservation_lock(
    take: Callable[[], Any | None] = take_lock,
    give_back: Callable[[Any], None] = ray.kill,
    max_wait_s: float = MAX_WAIT_S,
    poll_s: float = POLL_S,
) -> AsyncIterator[None]:
    """Context manager that holds the lock. If the lock is not free within `max_wait_s`, the body runs without it."""
    holder = None
    try:
        async with asyncio.timeout(max_wait_s):
            while (holder := take()) is None:  # noqa: ASYNC110 - the holder is in another process
                await asyncio.sleep(poll_s)
    except TimeoutError:
        pass
    try:
        yield
    finally:
        if holder is not None:
            give_back(holder)
