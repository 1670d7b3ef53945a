"""Reserves the resources of one job on a live Ray cluster, as planned, and reports what a waiting job lacks.

The first engine and all learner ranks are reserved together or not at all, so two jobs never deadlock. Each further
engine has a reservation of its own and joins when there is room. Ray counts a pending reservation as demand, so an
autoscaling cluster grows for it; when a node dies, Ray reserves its resources again elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from agent_rft.cluster.planning.placement import KINDS, Bundle, Placement, assign, bundle_name, holds, text_of
from agent_rft.cluster.ray_cluster.usage import FURTHER, REQUIRED, cluster_use, group_name, holders
from agent_rft.errors import InvalidJob, Problem

PLACEMENT_TIMEOUT_S = 300.0
NEWS_S = 5.0
FURTHER_S = 2.0
"""How long to wait for further engines once the first is placed; if there is room, this is enough."""

HALF = 0.5
"""A half as Ray counts GPUs: both actors of a bundle get the same one. Ray does not bound the memory that they take."""
RANK_NAME = ":learner-rank-"
"""Between the run's name and the rank's index in the name of its actor."""


class Seats:
    """The reservations of one job: requested on construction, awaited by `ready`, returned by `release`.

    `release` also cancels reservations that are still pending. The names of the job's actors start with `run`, which
    tells jobs apart in Ray's dashboard.
    """

    def __init__(self, placement: Placement, run: str) -> None:
        self._placement = placement
        self._run = run
        self._incarnations = Counter[int]()
        alone = not placement.colocated and not placement.shared
        self._further = range(1, placement.engines) if alone else range(0)
        # Bundle of the plan -> (placement group, index within it).
        self._where: dict[int, tuple[int, int]] = {bundle: (n, 0) for n, bundle in enumerate(self._further, start=1)}
        together = [i for i in placement.reserved if i not in self._where]
        self._where |= {bundle: (0, n) for n, bundle in enumerate(together)}
        self._groups = [self._ask(together, REQUIRED)]

    async def ready(
        self,
        tell: Callable[[str], None],
        timeout_s: float = PLACEMENT_TIMEOUT_S,
        wait_for_nodes_s: float = 0.0,
    ) -> list[int]:
        """Wait until the first engine and all learner ranks are placed; returns the indices of the placed engines.

        What is missing is reported to `tell`. With `wait_for_nodes_s`, also wait that long for bundles that no present
        node can hold.

        Raises:
            InvalidJob: The resources were not available in time; or a bundle fits on no present node, and
                `wait_for_nodes_s` is 0.
        """
        if not wait_for_nodes_s and (too_large := self._too_large()):
            remedy = "lower the cores or GPUs of each engine and learner rank, or add larger nodes"
            problem = Problem("too_few_resources", "cluster", too_large, remedy)
            raise InvalidJob("the job does not fit on the cluster", [problem])
        timeout_s, news = max(timeout_s, wait_for_nodes_s), ""
        reserved = self._reserved(0)
        try:
            async with asyncio.timeout(timeout_s):
                while not (await asyncio.wait({reserved}, timeout=NEWS_S))[0]:
                    if news != (news := self._missing()):
                        tell(news)
        except TimeoutError:
            raise not_available(timeout_s, self._missing()) from None
        finally:
            reserved.cancel()
        reserved.result()  # raises if Ray could not reserve them
        return await self._engines_placed()

    async def _engines_placed(self) -> list[int]:
        """The engines that are placed within `FURTHER_S`.

        Further engines are requested only here: pending at the same time, they would compete with the first group.
        """
        self._groups += [self._ask([bundle], FURTHER) for bundle in self._further]
        waiting = {self._reserved(n): n for n in range(1, len(self._groups))}
        placed = (await asyncio.wait(waiting, timeout=FURTHER_S))[0] if waiting else set()
        for task in waiting:
            task.cancel()
        ready = {0} | {waiting[task] for task in placed}
        engines = range(0 if self._placement.shared else self._placement.engines)
        return [i for i in engines if self._where[self._placement.bundle_of_engine(i)][0] in ready]

    async def engine_placed(self, index: int) -> None:
        """Wait until engine `index` is placed, or placed again after its node was lost."""
        group, _ = self._where[self._placement.bundle_of_engine(index)]
        await self._reserved(group)

    def engine(self, index: int) -> dict[str, Any]:
        """Ray's options for a new actor of engine `index`.

        Cores that it shares with ranks count as the engine's; of a GPU that it shares with a rank, each has a half. The
        actor of a job that shares its engines is beside rank 0 and takes nothing.
        """
        placement = self._placement
        gpus = HALF if placement.shares_gpus else placement.engine_gpus
        self._incarnations[index] += 1
        again = f" ({self._incarnations[index]})" if self._incarnations[index] > 1 else ""
        return {
            "name": f"{self._run}:engine-{index}{again}",
            "num_cpus": 0 if placement.shared else placement.engine_cores,
            "num_gpus": 0 if placement.shared else gpus,
            "scheduling_strategy": self._strategy(self._bundle_of(index)),
        }

    def rank(self, index: int) -> dict[str, Any]:
        """Ray's options for the actor of learner rank `index`."""
        placement = self._placement
        return {
            "name": f"{self._run}{RANK_NAME}{index}",
            "num_cpus": 0 if placement.colocated else placement.rank_cores,
            "num_gpus": HALF if placement.shares_gpus else placement.rank_gpus,
            "scheduling_strategy": self._strategy(placement.bundle_of_rank(index)),
        }

    def beside(self, name: str, index: int = 0) -> dict[str, Any]:
        """Ray's options for an actor that reserves nothing: on an engine's node, or elsewhere if that node is gone."""
        nodes = list(dict.fromkeys(filter(None, map(self._engine_node, range(self._placement.engines)))))
        options = {"name": f"{self._run}:{name}"}
        if not nodes:
            return options
        return options | {"scheduling_strategy": NodeAffinitySchedulingStrategy(nodes[index % len(nodes)], soft=True)}

    def _bundle_of(self, engine: int) -> int:
        """The bundle of an engine's actor."""
        placement = self._placement
        return placement.bundle_of_rank(0) if placement.shared else placement.bundle_of_engine(engine)

    def _engine_node(self, index: int) -> str | None:
        group, bundle = self._where[self._bundle_of(index)]
        node: str | None = placement_group_table(self._groups[group])["bundles_to_node_id"].get(bundle)
        return node

    @property
    def are_granted(self) -> bool:
        """Whether Ray has reserved what the job needs to start."""
        created: bool = placement_group_table(self._groups[0])["state"] == "CREATED"
        return created

    def release(self) -> None:
        for group in self._groups:
            remove_placement_group(group)

    def _strategy(self, bundle: int) -> PlacementGroupSchedulingStrategy:
        group, index = self._where[bundle]
        return PlacementGroupSchedulingStrategy(self._groups[group], placement_group_bundle_index=index)

    def _ask(self, bundles: Sequence[int], part: str) -> PlacementGroup:
        requested = [self._placement.bundles[i] for i in bundles]
        return placement_group(requested, strategy="PACK", name=group_name(self._run, part, bundles[0]))

    def _reserved(self, group: int) -> asyncio.Future[Any]:
        reserved: asyncio.Future[Any] = asyncio.ensure_future(self._groups[group].ready())
        return reserved

    # -- what is missing -----------------------------------------------------------------------------------------------

    def _needed(self) -> list[int]:
        """The bundles that the job needs to start."""
        return [bundle for bundle, (group, _) in self._where.items() if group == 0]

    def _too_large(self) -> str | None:
        """The first bundle that no present node can hold, even when idle."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for index, bundle in enumerate(self._placement.bundles):
            if not any(holds(node, bundle) for node in nodes):
                return f"{bundle_name(self._placement, index)} requires {text_of(bundle)}, more than any node has"
        return None

    def _missing(self) -> str:
        use = cluster_use()
        free = list(use.free.values())
        needed = self._needed()
        wanted = [self._placement.bundles[i] for i in needed]
        assigned = assign(wanted, free)
        without = [bundle_name(self._placement, i) for i, node in zip(needed, assigned, strict=True) if node is None]
        text = f"{text_of(_total(wanted))} required, {text_of(_total(free))} free"
        if without:
            text += f"; not placed: {', '.join(without)}"
        if others := holders(use, self._run.partition(":")[0]):
            text += f"; in use by {', '.join(others)}"
        too_large = self._too_large()
        return text if too_large is None else f"{text}; {too_large}: waiting for a larger one to join"


def not_available(timeout_s: float, missing: str) -> InvalidJob:
    """The error of a job that waited for resources without success."""
    remedy = "wait for other jobs to end, or add nodes"
    problem = Problem("no_free_resources", "cluster", f"after {timeout_s:g} s: {missing}", remedy)
    return InvalidJob("the job's resources did not become available", [problem])


def _total(bundles: Sequence[Bundle]) -> Bundle:
    return {kind: sum(bundle.get(kind, 0.0) for bundle in bundles) for kind in KINDS}
