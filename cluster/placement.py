"""Who gets which core or GPU: a pure plan that can be checked before anything starts, and its application."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainer.errors import InvalidJob, Problem
from trainer.spec import ClusterSpec

PLACEMENT_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Resources of each engine and each learner rank."""

    engines: int
    engine_cores: int
    engine_gpus: int
    learner_ranks: int
    rank_cores: int
    rank_gpus: int
    dtype: Literal["float32", "bfloat16"]

    @property
    def bundles(self) -> list[dict[str, float]]:
        """One bundle per engine, then one per rank."""
        engine = {"CPU": float(self.engine_cores)} | ({"GPU": float(self.engine_gpus)} if self.engine_gpus else {})
        rank = {"CPU": float(self.rank_cores)} | ({"GPU": float(self.rank_gpus)} if self.rank_gpus else {})
        return [engine] * self.engines + [rank] * self.learner_ranks


def plan_placement(cluster: ClusterSpec, resources: Mapping[str, float]) -> tuple[Placement, list[Problem]]:
    """What `auto` means on a cluster with these total resources, and what the cluster lacks for it."""
    has_gpus = resources.get("GPU", 0) > 0
    engine_gpus = int(has_gpus) if cluster.engine_gpus == "auto" else cluster.engine_gpus
    placement = Placement(
        engines=cluster.engines,
        engine_cores=cluster.engine_cores,
        engine_gpus=engine_gpus,
        learner_ranks=cluster.learner_ranks,
        rank_cores=cluster.rank_cores,
        rank_gpus=int(engine_gpus > 0),
        dtype=("bfloat16" if engine_gpus else "float32") if cluster.dtype == "auto" else cluster.dtype,
    )
    problems = []
    for kind, name in (("CPU", "cores"), ("GPU", "GPUs")):
        wanted = sum(bundle.get(kind, 0.0) for bundle in placement.bundles)
        there = resources.get(kind, 0.0)
        if wanted > there:
            message = (
                f"{placement.engines} engines and {placement.learner_ranks} learner ranks want {wanted:g} {name}, "
                f"the cluster has {there:g}"
            )
            remedy = "lower engines, learner_ranks or what each of them takes, or add nodes"
            problems.append(Problem("too_few_resources", "cluster", message, remedy))
    return placement, problems


class Seats:
    """The reserved places of one job. `actor_options(i)` puts an actor into bundle i."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._group: PlacementGroup = placement_group(placement.bundles, strategy="PACK")

    async def ready(self) -> None:
        """Wait for the resources.

        Raises:
            InvalidJob: they were not free in time; says what is missing.
        """
        try:
            async with asyncio.timeout(PLACEMENT_TIMEOUT_S):
                await self._group.ready()
        except TimeoutError:
            free = {kind: ray.available_resources().get(kind, 0.0) for kind in ("CPU", "GPU")}
            message = f"wants {self._placement.bundles}, free are {free} after {PLACEMENT_TIMEOUT_S:g} s"
            problem = Problem("no_free_resources", "cluster", message, "wait for other jobs to end, or add nodes")
            raise InvalidJob("the job found no place", [problem]) from None

    def actor_options(self, index: int) -> dict[str, Any]:
        bundle = self._placement.bundles[index]
        return {
            "num_cpus": bundle["CPU"],
            "num_gpus": bundle.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index),
        }

    def release(self) -> None:
        remove_placement_group(self._group)
