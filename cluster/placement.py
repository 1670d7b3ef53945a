"""Who gets which core or GPU: a pure plan that can be checked before anything starts, and its application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainer.errors import InvalidJob, Problem
from trainer.spec import ClusterSpec

PLACEMENT_TIMEOUT_S = 300.0
PLACEMENT_NEWS_S = 5.0
KINDS = {"CPU": "cores", "GPU": "GPUs"}

Bundle = dict[str, float]


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
    def bytes_per_weight(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def bundles(self) -> list[Bundle]:
        """One bundle per engine, then one per rank."""
        engine = {"CPU": float(self.engine_cores)} | ({"GPU": float(self.engine_gpus)} if self.engine_gpus else {})
        rank = {"CPU": float(self.rank_cores)} | ({"GPU": float(self.rank_gpus)} if self.rank_gpus else {})
        return [engine] * self.engines + [rank] * self.learner_ranks


def num_nodes(resources: Mapping[str, float]) -> int:
    """Ray gives each node a resource of its own, and the head node one more."""
    return sum(name.startswith("node:") and name != "node:__internal_head__" for name in resources)


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
    if placement.dtype == "bfloat16" and not engine_gpus:
        message = "bfloat16 is for GPUs: on CPUs it crashes with illegal instructions, and learner and engine disagree"
        problems.append(Problem("bfloat16_on_cpu", "cluster.dtype", message, "use float32, or auto"))
    engine, rank = placement.bundles[0], placement.bundles[-1]
    for kind, name in KINDS.items():
        wanted = sum(bundle.get(kind, 0.0) for bundle in placement.bundles)
        there = resources.get(kind, 0.0)
        if wanted > there:
            message = (
                f"the job wants {wanted:g} {name} (engines {placement.engines} x {engine.get(kind, 0):g}, "
                f"learner ranks {placement.learner_ranks} x {rank.get(kind, 0):g}), the cluster has {there:g}"
            )
            problems.append(_too_few(kind, message, has_gpus))
    return placement, problems


def _too_few(kind: str, message: str, has_gpus: bool) -> Problem:
    if kind == "GPU" and not has_gpus:
        remedy = "set engine_gpus to 0 or auto to run on cores, or add nodes with GPUs"
        return Problem("too_few_resources", "cluster.engine_gpus", message, remedy)
    takes = "engine_cores, rank_cores" if kind == "CPU" else "engine_gpus"
    return Problem("too_few_resources", "cluster", message, f"lower engines, learner_ranks or {takes}, or add nodes")


class Seats:
    """The reserved places of one job. `actor_options(i)` puts an actor into bundle i."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._group: PlacementGroup = placement_group(placement.bundles, strategy="PACK")

    async def ready(self, tell: Callable[[str], None], timeout_s: float = PLACEMENT_TIMEOUT_S) -> None:
        """Wait for the resources, telling what is missing.

        Raises:
            InvalidJob: no node can ever hold a bundle, or they were not free in time.
        """
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for bundle in self._placement.bundles:
            if not any(_holds(node, bundle) for node in nodes):
                message = f"one engine or learner rank wants {_text(bundle)}, but no single node has as much"
                remedy = "lower what each of them takes, or add larger nodes"
                raise InvalidJob("the job has no place", [Problem("too_few_resources", "cluster", message, remedy)])
        reserved, news = asyncio.ensure_future(self._group.ready()), ""
        try:
            async with asyncio.timeout(timeout_s):
                while not (await asyncio.wait({reserved}, timeout=PLACEMENT_NEWS_S))[0]:
                    if news != (news := self._missing()):
                        tell(f"waiting for resources: {news}")
        except TimeoutError:
            message = f"after {timeout_s:g} s: {self._missing()}"
            problem = Problem("no_free_resources", "cluster", message, "wait for other jobs to end, or add nodes")
            raise InvalidJob("the job found no place", [problem]) from None
        finally:
            reserved.cancel()

    def actor_options(self, index: int) -> dict[str, Any]:
        bundle = self._placement.bundles[index]
        return {
            "num_cpus": bundle["CPU"],
            "num_gpus": bundle.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index),
        }

    def release(self) -> None:
        remove_placement_group(self._group)

    def _missing(self) -> str:
        free = ray.available_resources()
        return f"{_text(_total(self._placement.bundles))} are wanted, {_text(free)} are free"


def _holds(node: Mapping[str, float], bundle: Bundle) -> bool:
    return all(node.get(kind, 0.0) >= amount for kind, amount in bundle.items())


def _total(bundles: Sequence[Bundle]) -> Bundle:
    return {kind: sum(bundle.get(kind, 0.0) for bundle in bundles) for kind in KINDS}


def _text(resources: Mapping[str, float]) -> str:
    """`2 cores, 1 GPUs`"""
    return ", ".join(f"{resources.get(kind, 0.0):g} {name}" for kind, name in KINDS.items())
