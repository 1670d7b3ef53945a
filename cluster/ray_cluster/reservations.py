"""Reservation of a job's planned resources on a live Ray cluster, with reports of missing resources.

The first engine and all learner ranks are reserved together or not at all, so two jobs never deadlock. Each further
engine has a separate reservation and joins when resources are free. Ray counts a pending reservation as demand, so an
autoscaling cluster adds nodes for it. When a node dies, Ray reserves its resources again on other nodes.
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

from agent_rft.cluster.planning.placement import (
    KINDS,
    Bundle,
    Placement,
    assign_nodes,
    bundle_name,
    format_resources,
    has_resources,
)
from agent_rft.cluster.ray_cluster.cluster_usage import (
    FURTHER,
    REQUIRED,
    list_holders,
    placement_group_name,
    read_usage,
)
from agent_rft.errors import InvalidJob, Problem

PLACEMENT_TIMEOUT_S = 300.0
REPORT_INTERVAL_S = 5.0
FURTHER_S = 2.0
"""Seconds to wait for further engines after the first engine is placed. This time suffices if resources are free."""

SHARED_GPU = 0.5
"""Share of a GPU that an engine and a rank each reserve if both use the same GPU. Ray does not limit GPU memory."""
RANK_NAME = ":learner-rank-"
"""Part of a rank's actor name between the run's name and the rank's index."""


class Reservations:
    """Resource reservations of one job: requested by the constructor, awaited by `wait`, and ended by `release`.

    `release` also cancels pending reservations. The argument `run` is the prefix of the names of the job's actors.
    """

    def __init__(self, placement: Placement, run: str) -> None:
        self._placement = placement
        self._run = run
        self._incarnations = Counter[int]()
        separate = not placement.colocated and not placement.has_shared_engines
        self._further = range(1, placement.engines) if separate else range(0)
        # Bundle of the placement -> (placement group, index in the group).
        self._where: dict[int, tuple[int, int]] = {bundle: (n, 0) for n, bundle in enumerate(self._further, start=1)}
        together = [i for i in placement.reserved_bundles if i not in self._where]
        self._where |= {bundle: (0, n) for n, bundle in enumerate(together)}
        self._groups = [self._request_group(together, REQUIRED)]

    async def wait(
        self,
        on_missing: Callable[[str], None],
        timeout_s: float = PLACEMENT_TIMEOUT_S,
        wait_for_nodes_s: float = 0.0,
    ) -> list[int]:
        """Wait until the first engine and all learner ranks are placed, and return the indices of the placed engines.

        Missing resources are reported to `on_missing`. If a bundle is too large for all current nodes, the call waits
        up to `wait_for_nodes_s` for a larger node to join.

        Raises:
            InvalidJob: The resources were not available in time, or a bundle is too large for all current nodes and
                `wait_for_nodes_s` is 0.
        """
        if not wait_for_nodes_s and (too_large := self._describe_too_large()):
            fix = "lower the cores or GPUs of each engine and learner rank, or add larger nodes"
            problem = Problem("too_few_resources", "cluster", too_large, fix)
            raise InvalidJob("the job does not fit on the cluster", [problem])
        timeout_s, news = max(timeout_s, wait_for_nodes_s), ""
        reserved = self._group_future(0)
        try:
            async with asyncio.timeout(timeout_s):
                while not (await asyncio.wait({reserved}, timeout=REPORT_INTERVAL_S))[0]:
                    if news != (news := self._describe_missing()):
                        on_missing(news)
        except TimeoutError:
            raise unavailable_error(timeout_s, self._describe_missing()) from None
        finally:
            reserved.cancel()
        reserved.result()  # raises if Ray could not reserve them
        return await self._engines_placed()

    async def _engines_placed(self) -> list[int]:
        """Request further engines, and return the indices of all engines that are placed within `FURTHER_S`.

        Further engines are requested only now, because they would compete with the first engine and the ranks for
        resources.
        """
        self._groups += [self._request_group([bundle], FURTHER) for bundle in self._further]
        waiting = {self._group_future(n): n for n in range(1, len(self._groups))}
        placed = (await asyncio.wait(waiting, timeout=FURTHER_S))[0] if waiting else set()
        for task in waiting:
            task.cancel()
        ready = {0} | {waiting[task] for task in placed}
        engines = range(0 if self._placement.has_shared_engines else self._placement.engines)
        return [i for i in engines if self._where[self._placement.engine_bundle(i)][0] in ready]

    async def wait_for_engine(self, index: int) -> None:
        """Wait until engine `index` is placed, or placed again after its node was lost."""
        group, _ = self._where[self._placement.engine_bundle(index)]
        await self._group_future(group)

    def engine_options(self, index: int) -> dict[str, Any]:
        """Return Ray's options for a new actor of engine `index`.

        If the engine shares cores with ranks, its actor reserves all these cores. If it shares a GPU with a rank, each
        of the two actors reserves half of the GPU. If the job shares its engines with other jobs, the actor runs in the
        bundle of rank 0 and reserves nothing.
        """
        placement = self._placement
        gpus = SHARED_GPU if placement.shares_gpus else placement.engine_gpus
        self._incarnations[index] += 1
        again = f" ({self._incarnations[index]})" if self._incarnations[index] > 1 else ""
        return {
            "name": f"{self._run}:engine-{index}{again}",
            "num_cpus": 0 if placement.has_shared_engines else placement.engine_cores,
            "num_gpus": 0 if placement.has_shared_engines else gpus,
            "scheduling_strategy": self._strategy(self._find_bundle(index)),
        }

    def rank_options(self, index: int) -> dict[str, Any]:
        """Return Ray's options for the actor of learner rank `index`."""
        placement = self._placement
        return {
            "name": f"{self._run}{RANK_NAME}{index}",
            "num_cpus": 0 if placement.colocated else placement.rank_cores,
            "num_gpus": SHARED_GPU if placement.shares_gpus else placement.rank_gpus,
            "scheduling_strategy": self._strategy(placement.rank_bundle(index)),
        }

    def helper_options(self, name: str, index: int = 0) -> dict[str, Any]:
        """Return Ray's options for a dispatcher or grader pool, which reserves nothing and prefers an engine's node."""
        nodes = list(dict.fromkeys(filter(None, map(self._engine_node, range(self._placement.engines)))))
        options = {"name": f"{self._run}:{name}"}
        if not nodes:
            return options
        return options | {"scheduling_strategy": NodeAffinitySchedulingStrategy(nodes[index % len(nodes)], soft=True)}

    def _find_bundle(self, engine: int) -> int:
        """Return the index of the bundle in which an engine's actor runs."""
        placement = self._placement
        return placement.rank_bundle(0) if placement.has_shared_engines else placement.engine_bundle(engine)

    def _engine_node(self, index: int) -> str | None:
        group, bundle = self._where[self._find_bundle(index)]
        node: str | None = placement_group_table(self._groups[group])["bundles_to_node_id"].get(bundle)
        return node

    @property
    def is_reserved(self) -> bool:
        """Whether Ray has reserved the resources that the job needs to start."""
        created: bool = placement_group_table(self._groups[0])["state"] == "CREATED"
        return created

    def release(self) -> None:
        for group in self._groups:
            remove_placement_group(group)

    def _strategy(self, bundle: int) -> PlacementGroupSchedulingStrategy:
        group, index = self._where[bundle]
        return PlacementGroupSchedulingStrategy(self._groups[group], placement_group_bundle_index=index)

    def _request_group(self, bundles: Sequence[int], part: str) -> PlacementGroup:
        requested = [self._placement.bundles[i] for i in bundles]
        return placement_group(requested, strategy="PACK", name=placement_group_name(self._run, part, bundles[0]))

    def _group_future(self, group: int) -> asyncio.Future[Any]:
        reserved: asyncio.Future[Any] = asyncio.ensure_future(self._groups[group].ready())
        return reserved

    # -- what is missing -----------------------------------------------------------------------------------------------

    def _required_bundles(self) -> list[int]:
        """Return the bundles that the job needs to start."""
        return [bundle for bundle, (group, _) in self._where.items() if group == 0]

    def _describe_too_large(self) -> str | None:
        """Return a description of the first bundle that is too large for all current nodes; None if all bundles fit."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for index, bundle in enumerate(self._placement.bundles):
            if not any(has_resources(node, bundle) for node in nodes):
                return (
                    f"{bundle_name(self._placement, index)} requires {format_resources(bundle)}, more than any node has"
                )
        return None

    def _describe_missing(self) -> str:
        use = read_usage()
        free = list(use.free.values())
        needed = self._required_bundles()
        required = [self._placement.bundles[i] for i in needed]
        assigned = assign_nodes(required, free)
        unplaced = [bundle_name(self._placement, i) for i, node in zip(needed, assigned, strict=True) if node is None]
        text = f"{format_resources(_sum_bundles(required))} required, {format_resources(_sum_bundles(free))} free"
        if unplaced:
            text += f"; not placed: {', '.join(unplaced)}"
        if others := list_holders(use, self._run.partition(":")[0]):
            text += f"; in use by {', '.join(others)}"
        too_large = self._describe_too_large()
        return text if too_large is None else f"{text}; {too_large}, so a larger node must join"


def unavailable_error(timeout_s: float, missing: str) -> InvalidJob:
    """Return the error for a job whose resources did not become available in time."""
    fix = "wait for other jobs to end, or add nodes"
    problem = Problem("no_free_resources", "cluster", f"after {timeout_s:g} s: {missing}", fix)
    return InvalidJob("the job's resources did not become available", [problem])


def _sum_bundles(bundles: Sequence[Bundle]) -> Bundle:
    return {kind: sum(bundle.get(kind, 0.0) for bundle in bundles) for kind in KINDS}
