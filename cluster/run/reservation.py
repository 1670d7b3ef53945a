"""The reservation of a job's GPUs: chosen and reserved in one turn of the cluster's jobs.

A job that lost GPUs after its check, or that waits while GPUs become free, is laid out again on those that are free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from agent_rft.cluster.planning.nodes import Node
from agent_rft.cluster.planning.placement import Placement
from agent_rft.cluster.preflight.prepare import Prepared
from agent_rft.spec.operator.config import Operator

GRANT_S = 5.0
"""How long a turn lasts at most after the request; Ray grants what is free within milliseconds."""
LOOK_S = 2.0
"""Seconds between two looks at the free GPUs while a job waits for them."""
MAX_LAYOUTS = 8
"""Layouts that a job tries; then it waits for the last one, so that it keeps its place in Ray's queue."""


class Reserved(Protocol):
    """What is used here of `Seats`."""

    @property
    def are_granted(self) -> bool: ...

    async def ready(self, tell: Callable[[str], None], *, wait_for_nodes_s: float) -> list[int]: ...

    def release(self) -> None: ...


Seats = TypeVar("Seats", bound=Reserved)


@dataclass(frozen=True, slots=True)
class _Attempt(Generic[Seats]):
    """A requested reservation, and the wait for it."""

    seats: Seats
    waiting: asyncio.Task[list[int]]

    def withdraw(self) -> None:
        self.waiting.cancel()
        self.seats.release()


async def reserve(
    prepared: Prepared,
    request: Callable[[Placement], Seats],
    nodes: Callable[[], Sequence[Node]],
    operator: Operator,
    tell: Callable[[str], None],
    on_change: Callable[[Prepared], None],
    turn: Callable[[], AbstractAsyncContextManager[None]],
    *,
    grant_s: float = GRANT_S,
    look_s: float = LOOK_S,
    max_layouts: int = MAX_LAYOUTS,
) -> tuple[Seats, list[int]]:
    """Reserve a job's layout, or another one that fits on the GPUs that are free now.

    Args:
        prepared: The job, as its check has laid it out.
        request: Requests the reservation of a placement.
        nodes: Reads the nodes and the GPUs that others hold.
        operator: Has the limits of a job, and the nodes that may join.
        tell: Called with what is missing while the job waits.
        on_change: Called with the job when it gets another layout, before that is requested.
        turn: Returns the context manager within which no other job chooses.
        grant_s: Seconds that a turn lasts at most after a request.
        look_s: Seconds between two looks at the free GPUs.
        max_layouts: Layouts that are requested at most.

    Returns:
        The reservation, and the indices of the engines that are placed.

    Raises:
        InvalidJob: The resources were not available in time.
    """

    def ask(prepared: Prepared) -> _Attempt[Seats]:
        seats = request(prepared.placement)
        return _Attempt(seats, asyncio.create_task(seats.ready(tell, wait_for_nodes_s=operator.wait_for_nodes_s)))

    attempt = None if prepared.may_change_layout else ask(prepared)
    layouts_left = max_layouts if attempt is None else 0
    try:
        while layouts_left and (attempt is None or not attempt.waiting.done()):
            async with turn():
                found = await asyncio.to_thread(nodes)
                changed = await asyncio.to_thread(prepared.laid_out_on, found, operator)
                if attempt is None or (changed is not None and not attempt.seats.are_granted):
                    if attempt is not None:
                        attempt.withdraw()
                    if changed is not None:
                        prepared = changed
                        on_change(prepared)
                    attempt, layouts_left = ask(prepared), layouts_left - 1
                    await asyncio.wait({attempt.waiting}, timeout=grant_s)
            while layouts_left and not attempt.waiting.done():
                if not attempt.seats.are_granted and await asyncio.to_thread(nodes) != found:
                    break
                await asyncio.wait({attempt.waiting}, timeout=look_s)
        assert attempt is not None
        return attempt.seats, await attempt.waiting
    except BaseException:
        if attempt is not None:
            attempt.withdraw()
        raise
