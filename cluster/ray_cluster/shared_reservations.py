"""Reservations of shared engines.

The first job that needs a shared engine creates the engine's actor. The actor holds the engine's resources. A job waits
for its shared engines before it reserves resources for its ranks. Otherwise the ranks of several jobs could take the
resources that the shared engine of these jobs needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agent_rft.actors.engine.shared.shared_engine import SharedConfig
from agent_rft.cluster.planning.placement import format_resources
from agent_rft.cluster.ray_cluster.reservations import FURTHER_S, PLACEMENT_TIMEOUT_S, unavailable_error


class SharedReservations:
    """Reservations of the shared engines of one job, by index; empty if the job does not share engines.

    If the first engine takes longer than `patience_s`, its missing resources are reported. After the first engine is
    placed, the wait for further engines takes at most `patience_s`.
    """

    def __init__(self, engines: Sequence[SharedConfig], patience_s: float = FURTHER_S) -> None:
        self._engines = engines
        self._patience_s = patience_s

    def get(self, index: int) -> SharedConfig | None:
        """Return the shared engine with this index; None if the job does not share engines."""
        return self._engines[index] if self._engines else None

    async def wait(
        self,
        on_missing: Callable[[str], None],
        timeout_s: float = PLACEMENT_TIMEOUT_S,
        wait_for_nodes_s: float = 0.0,
    ) -> list[int]:
        """Wait until the first engine has its resources, and return the indices of all engines that have them.

        Missing resources are reported to `on_missing`.

        Raises:
            InvalidJob: The first engine's resources were not available in time.
        """
        if not self._engines:
            return []
        timeout_s = max(timeout_s, wait_for_nodes_s)
        waiting = {asyncio.create_task(self.wait_for_engine(index)): index for index in range(len(self._engines))}
        first, *further = waiting
        try:
            if not (await asyncio.wait({first}, timeout=self._patience_s))[0]:
                on_missing(self._missing())
            if not (await asyncio.wait({first}, timeout=timeout_s))[0]:
                raise unavailable_error(timeout_s, self._missing())
            first.result()
            placed = (await asyncio.wait(further, timeout=self._patience_s))[0] if further else set()
            return sorted(waiting[task] for task in {first, *placed} if task.exception() is None)
        finally:
            for task in waiting:
                task.cancel()

    async def wait_for_engine(self, index: int) -> None:
        """Wait until engine `index` has its resources. If the engine does not exist, it is created."""
        await self._engines[index].reserve_actor()

    def _missing(self) -> str:
        engine = self._engines[0]
        required = format_resources({"CPU": engine.cores, "GPU": engine.engine.gpus})
        return f"the shared engine {engine.name} requires {required}, which no single node has free"
