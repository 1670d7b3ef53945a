"""Who gets which core or GPU: a pure plan that is made before anything starts, and says what does not fit.

An engine, however many GPUs it has, and a learner rank are a bundle each: one node holds the whole of it. `Seats`
(cluster/ray_cluster/seats.py) asks Ray for the same bundles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cluster.planning.memory import Memory, engine_memory, rank_memory
from cluster.planning.model_shape import ModelShape
from cluster.planning.nodes import GIB, Node
from trainer.errors import Problem
from trainer.spec.job import JobSpec

KINDS = {"CPU": "cores", "GPU": "GPUs"}
DRIVER_BYTES = round(0.7 * GIB)
"""Of the driver: Python, torch, transformers, Ray."""
DISPATCHER_BYTES, GRADER_POOL_BYTES = round(0.3 * GIB), round(0.4 * GIB)

Bundle = dict[str, float]
Role = Literal["engine", "learner rank"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Resources of each engine and each learner rank. `colocated`: they have the same bundles by turns."""

    engines: int
    engine_cores: int
    engine_gpus: int
    learner_ranks: int
    rank_cores: int
    rank_gpus: int
    dtype: Literal["float32", "bfloat16"]
    colocated: bool = False

    @property
    def bytes_per_weight(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def bundles(self) -> list[Bundle]:
        """What one node must hold each: of engines and then of ranks, or shared ones."""
        if not self.colocated:
            engine, rank = (
                _bundle(self.engine_cores, self.engine_gpus),
                _bundle(self.rank_cores, self.rank_gpus),
            )
            return [engine] * self.engines + [rank] * self.learner_ranks
        together = self._ranks_together
        num_bundles = max(self.engines, math.ceil(self.learner_ranks / together))
        cores = max(self.engine_cores, self.rank_cores * together)
        return [_bundle(cores, max(self.engine_gpus, self.rank_gpus * together))] * num_bundles

    def bundle_of_engine(self, index: int) -> int:
        return index

    def bundle_of_rank(self, index: int) -> int:
        return index // self._ranks_together if self.colocated else self.engines + index

    @property
    def _ranks_together(self) -> int:
        """In a shared bundle: one for each GPU of an engine."""
        return max(1, self.engine_gpus)


def _bundle(cores: int, gpus: int) -> Bundle:
    return {"CPU": float(cores)} | ({"GPU": float(gpus)} if gpus else {})


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where one engine or rank may go. Ray may choose another node that is alike. `node` is None where none has room;
    `memory` where the model is not known.
    """

    role: Role
    index: int
    cores: float
    gpus: float
    node: Node | None
    memory: Memory | None


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """`lacking` is what more nodes would mend, `problems` what they would not."""

    placement: Placement
    nodes: tuple[Node, ...]
    places: tuple[Assignment, ...]
    host_bytes: tuple[int, ...]
    """What is taken of each node's memory; what has no place of its own (driver, dispatchers, graders) on the first."""
    lacking: tuple[Problem, ...]
    problems: tuple[Problem, ...]


def plan_placement(
    job: JobSpec, nodes: Sequence[Node], model: ModelShape | None, context_length: int, *, learner: bool = True
) -> ClusterPlan:
    """What `auto` means on these nodes, who goes where, what memory it takes and what does not fit. Without `learner`:
    of a run that only grades.
    """
    placement = _placement(job, nodes, learner)
    lacking = [*_totals(placement, nodes)]
    assigned = assign(placement.bundles, [node.resources for node in nodes])
    if not lacking:
        lacking += _without_place(placement, nodes, assigned)
    places = tuple(_places(job, placement, nodes, assigned, model, context_length))
    host_bytes = _host_bytes(job, placement, nodes, places, model)
    problems = [*_setting_problems(job, placement), *_memory_problems(job, places, nodes, host_bytes)]
    return ClusterPlan(placement, tuple(nodes), places, host_bytes, tuple(lacking), tuple(problems))


def _placement(job: JobSpec, nodes: Sequence[Node], learner: bool) -> Placement:
    cluster = job.cluster
    has_gpus = any(node.gpus > 0 for node in nodes)
    engine_gpus = int(has_gpus) if cluster.engine_gpus == "auto" else cluster.engine_gpus
    return Placement(
        engines=cluster.engines if job.method.type == "reinforcement" else 0,
        engine_cores=cluster.engine_cores,
        engine_gpus=engine_gpus,
        learner_ranks=cluster.learner_ranks if learner else 0,
        rank_cores=cluster.rank_cores,
        rank_gpus=int(engine_gpus > 0),
        dtype=("bfloat16" if engine_gpus else "float32") if cluster.dtype == "auto" else cluster.dtype,
        colocated=cluster.colocated and learner,
    )


# -- who goes where ----------------------------------------------------------------------------------------------------


def assign(bundles: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> list[int | None]:
    """A node for each bundle, given what is free on each: the largest bundle first, onto nodes that have one already,
    and there where least is left. As Ray's strategy PACK: near to each other where that is possible.
    """
    free = [dict(node) for node in nodes]
    chosen: list[int | None] = [None] * len(bundles)
    for index in sorted(range(len(bundles)), key=lambda i: [-bundles[i].get(kind, 0.0) for kind in ("GPU", "CPU")]):
        bundle = bundles[index]
        fitting = [i for i, node in enumerate(free) if holds(node, bundle)]
        if fitting:
            left = {i: [free[i].get(kind, 0.0) for kind in ("GPU", "CPU")] for i in fitting}
            best = min(fitting, key=lambda i: (i not in chosen, left[i], i))
            for kind, amount in bundle.items():
                free[best][kind] -= amount
            chosen[index] = best
    return chosen


def holds(node: Mapping[str, float], bundle: Bundle) -> bool:
    return all(node.get(kind, 0.0) >= amount for kind, amount in bundle.items())


def _places(
    job: JobSpec,
    placement: Placement,
    nodes: Sequence[Node],
    assigned: Sequence[int | None],
    model: ModelShape | None,
    context_length: int,
) -> Iterator[Assignment]:
    def node_of(bundle: int) -> Node | None:
        index = assigned[bundle]
        return None if index is None else nodes[index]

    itemsize, gpus = placement.bytes_per_weight, placement.engine_gpus
    for i in range(placement.engines):
        node, memory = node_of(placement.bundle_of_engine(i)), None
        if model is not None:
            memory = engine_memory(
                model,
                job.cluster,
                gpus=gpus,
                itemsize=itemsize,
                context_length=context_length,
                gpu_bytes=None if node is None else node.gpu_memory_bytes,
            )
        yield Assignment("engine", i, placement.engine_cores, gpus, node, memory)
    supervised = job.method.type == "supervised"
    for i in range(placement.learner_ranks):
        node, memory = node_of(placement.bundle_of_rank(i)), None
        if model is not None:
            memory = rank_memory(
                model,
                job.cluster,
                on_gpu=placement.rank_gpus > 0,
                itemsize=itemsize,
                longest=context_length,
                keeps_start=not supervised and job.reinforcement.algorithm.kl_coef > 0,
            )
        yield Assignment("learner rank", i, placement.rank_cores, placement.rank_gpus, node, memory)


def _host_bytes(
    job: JobSpec, placement: Placement, nodes: Sequence[Node], places: Sequence[Assignment], model: ModelShape | None
) -> tuple[int, ...]:
    taken = [0] * len(nodes)
    for place in places:
        if place.node is not None and place.memory is not None:
            taken[nodes.index(place.node)] += place.memory.host_bytes
            if (place.role, place.index) == ("learner rank", 0) and placement.engines and model is not None:
                # The last version's weights, for engines that start later.
                taken[nodes.index(place.node)] += model.num_parameters * placement.bytes_per_weight
    if nodes:
        taken[0] += DRIVER_BYTES
        if placement.engines:
            taken[0] += job.cluster.dispatchers * DISPATCHER_BYTES + GRADER_POOL_BYTES
    return tuple(taken)


# -- what does not fit -------------------------------------------------------------------------------------------------


def _totals(placement: Placement, nodes: Sequence[Node]) -> Iterator[Problem]:
    for kind, name in KINDS.items():
        wanted = sum(bundle.get(kind, 0.0) for bundle in placement.bundles)
        there = sum(node.resources[kind] for node in nodes)
        if wanted > there:
            text = f"the job wants {wanted:g} {name} ({_shares(placement, kind)}), the cluster has {there:g}"
            if kind == "GPU" and not there:
                remedy = "set engine_gpus to 0 or auto to run on cores, or add nodes with GPUs"
                yield Problem("too_few_resources", "cluster.engine_gpus", text, remedy)
            else:
                yield _too_few(kind, text)


def _shares(placement: Placement, kind: str) -> str:
    if placement.colocated:
        return f"{len(placement.bundles)} x {placement.bundles[0].get(kind, 0):g}, shared by engines and learner ranks"
    each = {"CPU": (placement.engine_cores, placement.rank_cores), "GPU": (placement.engine_gpus, placement.rank_gpus)}
    of_engine, of_rank = each[kind]
    parts = (("engines", placement.engines, of_engine), ("learner ranks", placement.learner_ranks, of_rank))
    return ", ".join(f"{name} {count} x {each:g}" for name, count, each in parts if count)


def _without_place(placement: Placement, nodes: Sequence[Node], assigned: Sequence[int | None]) -> Iterator[Problem]:
    """There is enough in all, but not on one node."""
    for index, (bundle, node) in enumerate(zip(placement.bundles, assigned, strict=True)):
        if node is None:
            who = bundle_name(placement, index)
            kind = "GPU" if "GPU" in bundle else "CPU"
            if any(holds(there.resources, bundle) for there in nodes):
                text = f"{who} wants {text_of(bundle)} of one node, and no node has as much left beside the others"
            else:
                text = f"{who} wants {text_of(bundle)}, but no single node has as much"
            yield _too_few(kind, text)
            return  # the others lack the same


def _too_few(kind: str, message: str) -> Problem:
    takes = "engine_cores, rank_cores" if kind == "CPU" else "engine_gpus"
    return Problem("too_few_resources", "cluster", message, f"lower engines, learner_ranks or {takes}, or add nodes")


def _setting_problems(job: JobSpec, placement: Placement) -> Iterator[Problem]:
    if placement.dtype == "bfloat16" and not placement.engine_gpus:
        message = "bfloat16 is for GPUs: on CPUs it crashes with illegal instructions, and learner and engine disagree"
        yield Problem("bfloat16_on_cpu", "cluster.dtype", message, "use float32, or auto")
    if not placement.colocated:
        return
    if placement.engine_gpus:
        message = "engines and learner ranks do not take turns on GPUs yet; on cores they do"
        yield Problem(
            "colocated_on_gpus", "cluster.colocated", message, "leave colocated out: they get GPUs of their own"
        )
    if job.method.type == "supervised":
        message = "a supervised job has no engines that a learner could take turns with"
        yield Problem("colocated_without_engines", "cluster.colocated", message, "leave it out")
    elif job.reinforcement.algorithm.max_staleness > 0:
        message = "engines that take turns with the learner never sample while it learns, so nothing can be stale"
        remedy = "set method.reinforcement.algorithm.max_staleness to 0, or leave colocated out"
        yield Problem("colocated_is_on_policy", "cluster.colocated", message, remedy)


def _memory_problems(
    job: JobSpec, places: Sequence[Assignment], nodes: Sequence[Node], host_bytes: Sequence[int]
) -> Iterator[Problem]:
    engine = next((place for place in places if place.role == "engine"), None)
    if engine is not None and engine.memory is not None and (engine.memory.num_sequences or 0.0) < 1.0:
        yield _no_cache(engine, engine.memory)
    for role in ("engine", "learner rank"):
        for place in places:
            if place.role == role and place.memory is not None and (problem := _gpu_problem(job, place, place.memory)):
                yield problem
                break  # the others are alike
    for node, taken in zip(nodes, host_bytes, strict=True):
        if node.memory_bytes is not None and taken > node.memory_bytes:
            message = f"{size(taken)} of memory are wanted on {node.name}, which has {size(node.memory_bytes)}"
            remedy = "use a node with more memory, or fewer engines and ranks; `agent-rft plan` shows the parts"
            yield Problem("too_little_memory", "cluster", message, remedy)


def _no_cache(engine: Assignment, memory: Memory) -> Problem:
    where = "a GPU" if engine.gpus else "a CPU engine, whose cache is fixed,"
    message = f"what {where} has for an engine's cache holds {memory.num_sequences:.2f} sequences of the whole context"
    remedy = "lower cluster.context_length" + (", or raise cluster.engine_gpus" if engine.gpus else "")
    return Problem("no_room_for_context", "cluster.context_length", message, remedy)


def _gpu_problem(job: JobSpec, place: Assignment, memory: Memory) -> Problem | None:
    there = None if place.node is None else place.node.gpu_memory_bytes
    if there is None or memory.gpu_bytes <= there:
        return None
    largest = sorted(memory.gpu, key=lambda part: -memory.gpu[part])[:2]
    parts = ", ".join(f"{part} {size(memory.gpu[part])}" for part in largest)
    message = f"{place.role} {place.index} takes {size(memory.gpu_bytes)} of a GPU ({parts}), which has {size(there)}"
    if place.role == "engine":
        remedy = "raise cluster.engine_gpus (tensor parallel), or lower context_length"
    elif "activations" in largest:
        remedy = "lower cluster.micro_batch_tokens or context_length"
    else:
        stage = job.cluster.zero_stage
        remedy = "raise cluster.learner_ranks" + (f" and set zero_stage to {stage + 1}" if stage < 3 else "")
    return Problem("too_little_gpu_memory", "cluster", message, remedy)


# -- words -------------------------------------------------------------------------------------------------------------


def bundle_name(placement: Placement, index: int) -> str:
    """`engine 1`, `learner rank 0`, or both where they share."""
    if placement.colocated:
        return f"place {index} (engine and learner)"
    if index < placement.engines:
        return f"engine {index}"
    return f"learner rank {index - placement.engines}"


def text_of(resources: Mapping[str, float]) -> str:
    """`2 cores, 1 GPUs`"""
    return ", ".join(f"{resources.get(kind, 0.0):g} {name}" for kind, name in KINDS.items())


def size(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.0f} MiB"
