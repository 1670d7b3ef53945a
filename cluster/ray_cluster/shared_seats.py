"""The resources of engines that jobs share: they belong to the engines' own actors, which the first job makes.

A job gets them before it reserves those of its ranks. If several jobs did both at once, their ranks could take all that
the engine for which they wait needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agent_rft.actors.engine.shared.actor import SharedConfig
from agent_rft.cluster.planning.placement import text_of
from agent_rft.cluster.ray_cluster.seats import FURTHER_S, PLACEMENT_TIMEOUT_S, not_available


class SharedSeats:
    """The shared engines of one job, in the order of their indices; none if it has its own.

    After `patience_s` it says what it waits for, or goes on without a further engine.
    """

    def __init__(self, engines: Sequence[SharedConfig], patience_s: float = FURTHER_S) -> None:
        self._engines = engines
        self._patience_s = patience_s

    def of(self, index: int) -> SharedConfig | None:
        """The engine of a seat; None if the job has its own."""
        return self._engines[index] if self._engines else None

    async def ready(
        self,
        tell: Callable[[str], None],
        timeout_s: float = PLACEMENT_TIMEOUT_S,
        wait_for_nodes_s: float = 0.0,
    ) -> list[int]:
        """Wait until the first engine has its resources; returns the indices of those that have.

        Raises:
            InvalidJob: They were not available in time.
        """
        if not self._engines:
            return []
        timeout_s = max(timeout_s, wait_for_nodes_s)
        waiting = {asyncio.create_task(self.placed(index)): index for index in range(len(self._engines))}
        first, *further = waiting
        try:
            if not (await asyncio.wait({first}, timeout=self._patience_s))[0]:
                tell(self._missing())
            if not (await asyncio.wait({first}, timeout=timeout_s))[0]:
                raise not_available(timeout_s, self._missing())
            first.result()
            placed = (await asyncio.wait(further, timeout=self._patience_s))[0] if further else set()
            return sorted(waiting[task] for task in {first, *placed} if task.exception() is None)
        finally:
            for task in waiting:
                task.cancel()

    async def placed(self, index: int) -> None:
        """Wait until an engine has its resources; it is made if there is none."""
        await self._engines[index].reserved()

    def _missing(self) -> str:
        engine = self._engines[0]
        wanted = text_of({"CPU": engine.cores, "GPU": engine.engine.gpus})
        return f"the shared engine {engine.name} requires {wanted}, which are not free on one node"
