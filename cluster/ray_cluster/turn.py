"""Turns of the jobs of a cluster to choose and reserve GPUs, so that two jobs never choose the same ones.

The holder of a turn owns an actor with a name that Ray allows only once. Ray frees the name when the holder's driver
ends, even if it is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import ray

NAME, NAMESPACE = "reserves-gpus", "agent-rft"
MAX_WAIT_S = 120.0
"""Then a job goes on without a turn: the holder's node does not answer."""
POLL_S = 0.25


class _Holder:
    """The actor that is the turn."""


def take_turn() -> Any | None:
    """Return the actor that stands for the turn; None if another job has it."""
    try:
        return ray.remote(_Holder).options(name=NAME, namespace=NAMESPACE, num_cpus=0).remote()
    except ValueError:  # Ray: the name is taken
        return None


@asynccontextmanager
async def own_turn(
    take: Callable[[], Any | None] = take_turn,
    give_back: Callable[[Any], None] = ray.kill,
    max_wait_s: float = MAX_WAIT_S,
    poll_s: float = POLL_S,
) -> AsyncIterator[None]:
    """Context manager in which no other job of the cluster has its turn. Waits `max_wait_s` at most, then enters."""
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
