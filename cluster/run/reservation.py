"""Reservation of a job's GPUs under a cluster-wide lock, so that two jobs never choose the same GPUs.

The job's layout is computed again if GPUs were lost after the job check, or if GPUs become free while the job waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from agent_rft.cluster.checks.check_job import CheckedJob
from agent_rft.cluster.planning.placement import Placement
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.spec.operator.operator_config import OperatorConfig

GRANT_S = 5.0
"""Maximum seconds to hold the lock after a request; Ray grants free GPUs within milliseconds."""
POLL_S = 2.0
"""Seconds between two checks of the free GPUs while a job waits for them."""
MAX_LAYOUTS = 8
"""Maximum number of layouts that a job requests, one after another. The last request stays in Ray's queue."""


class Reservable(Protocol):
    """The part of `Reservations` that this module uses."""

    @property
    def is_reserved(self) -> bool: ...

    async def wait(self, on_missing: Callable[[str], None], *, wait_for_nodes_s: float) -> list[int]: ...

    def release(self) -> None: ...


ReservationsT = TypeVar("ReservationsT", bound=Reservable)


@dataclass(frozen=True, slots=True)
class _Attempt(Generic[ReservationsT]):
    """A requested reservation, and the task that waits for Ray to grant the reservation."""

    reservations: ReservationsT
    waiting: asyncio.Task[list[int]]

    def withdraw(self) -> None:
        self.waiting.cancel()
        self.reservations.release()


async def reserve(
    prepared: CheckedJob,
    request: Callable[[Placement], ReservationsT],
    nodes: Callable[[], Sequence[Node]],
    operator: OperatorConfig,
    on_missing: Callable[[str], None],
    on_change: Callable[[CheckedJob], None],
    lock: Callable[[], AbstractAsyncContextManager[None]],
    *,
    grant_s: float = GRANT_S,
    poll_s: float = POLL_S,
    max_layouts: int = MAX_LAYOUTS,
) -> tuple[ReservationsT, list[int]]:
    """Reserve a job's layout, or another layout that fits on the free GPUs.

    Args:
        prepared: The job, with the layout that its check chose.
        request: Function that requests the reservation of a placement.
        nodes: Function that returns the nodes, with the GPUs that other jobs hold.
        operator: Operator's configuration, with the limits of a job and the nodes that may join the cluster.
        on_missing: Called with the missing resources while the job waits.
        on_change: Called with the job when its layout changes, before the new layout is requested.
        lock: Function that returns a context manager in which no other job can choose GPUs.
        grant_s: Maximum seconds to hold the lock after a request.
        poll_s: Seconds between two checks of the free GPUs.
        max_layouts: Maximum number of layouts to request.

    Returns:
        The reservation, and the indices of the engines that are placed.

    Raises:
        InvalidJob: The resources were not available in time.
    """

    def request_layout(prepared: CheckedJob) -> _Attempt[ReservationsT]:
        reservations = request(prepared.placement)
        return _Attempt(
            reservations, asyncio.create_task(reservations.wait(on_missing, wait_for_nodes_s=operator.wait_for_nodes_s))
        )

    attempt = None if prepared.can_change_layout else request_layout(prepared)
    layouts_left = max_layouts if attempt is None else 0
    try:
        while layouts_left and (attempt is None or not attempt.waiting.done()):
            async with lock():
                found = await asyncio.to_thread(nodes)
                changed = await asyncio.to_thread(prepared.lay_out_again, found, operator)
                if attempt is None or (changed is not None and not attempt.reservations.is_reserved):
                    if attempt is not None:
                        attempt.withdraw()
                    if changed is not None:
                        prepared = changed
                        on_change(prepared)
                    attempt, layouts_left = request_layout(prepared), layouts_left - 1
                    await asyncio.wait({attempt.waiting}, timeout=grant_s)
            while layouts_left and not attempt.waiting.done():
                if not attempt.reservations.is_reserved and await asyncio.to_thread(nodes) != found:
                    break
                await asyncio.wait({attempt.waiting}, timeout=poll_s)
        assert attempt is not None
        return attempt.reservations, await attempt.waiting
    except BaseException:
        if attempt is not None:
            attempt.withdraw()
        raise
