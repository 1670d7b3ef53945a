"""The placement of engines and learner ranks on nodes: computed before anything starts, with what does not fit.

Each engine, however many GPUs it has, and each learner rank is one bundle of resources that a single node must hold.
`Seats` (cluster/ray_cluster/seats.py) asks Ray for the same bundles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cluster.planning.memory import Memory, engine_memory, rank_memory
from cluster.planning.model_shape import ModelShape
from cluster.planning.nodes import Node
from cluster.planning.units import GIB
from trainer.errors import Problem
from trainer.spec.job import JobSpec

KINDS = {"CPU": "cores", "GPU": "GPUs"}
DRIVER_BYTES = round(0.7 * GIB)
"""Memory of the driver process: Python, torch, transformers, Ray."""
DISPATCHER_BYTES, GRADER_POOL_BYTES = round(0.3 * GIB), round(0.4 * GIB)

Bundle = dict[str, float]
Role = Literal["engine", "learner rank"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Resources of each engine and each learner rank; `colocated` ones share bundles and take turns."""

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
        """Resources that one node must hold together: one bundle per engine, then one per rank, or shared ones."""
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
        """Ranks in a shared bundle: one for each GPU of an engine."""
        return max(1, self.engine_gpus)


def _bundle(cores: int, gpus: int) -> Bundle:
    return {"CPU": float(cores)} | ({"GPU": float(gpus)} if gpus else {})


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where one engine or rank fits, though Ray may choose an equivalent node.

    `node` is None if no node has room; `memory` is None if the model is unknown.
    """

    role: Role
    index: int
    cores: float
    gpus: float
    node: Node | None
    memory: Memory | None


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A placement and what does not fit: `lacking` is solved by adding nodes, `problems` are not."""

    placement: Placement
    nodes: tuple[Node, ...]
    assignments: tuple[Assignment, ...]
    host_bytes: tuple[int, ...]
    """Memory used on each node; that of driver, dispatchers and graders is counted on the first."""
    lacking: tuple[Problem, ...]
    problems: tuple[Problem, ...]


def plan_placement(
    job: JobSpec, nodes: Sequence[Node], model: ModelShape | None, context_length: int, *, learner: bool = True
) -> ClusterPlan:
    """The placement of a job on `nodes`: settings that are `auto`, a node and memory per actor, and what does not fit.

    Without a `model`, memory is not checked. Without `learner`, the run only grades.
    """
    placement = _placement(job, nodes, learner)
    lacking = [*_totals(placement, nodes)]
    assigned = assign(placement.bundles, [node.resources for node in nodes])
    if not lacking:
        lacking += _unassigned(placement, nodes, assigned)
    assignments = tuple(_assignments(job, placement, nodes, assigned, model, context_length))
    host_bytes = _host_bytes(job, placement, nodes, assignments, model)
    problems = [*_setting_problems(job, placement), *_memory_problems(job, assignments, nodes, host_bytes)]
    return ClusterPlan(placement, tuple(nodes), assignments, host_bytes, tuple(lacking), tuple(problems))


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


# -- assignment --------------------------------------------------------------------------------------------------------


def assign(bundles: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> list[int | None]:
    """The index of a node for each bundle (None if no node has room), packed as by Ray's strategy PACK.

    The largest bundle comes first; nodes that already have a bundle are preferred, then those with the least left.
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


def _assignments(
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
    job: JobSpec,
    placement: Placement,
    nodes: Sequence[Node],
    assignments: Sequence[Assignment],
    model: ModelShape | None,
) -> tuple[int, ...]:
    used = [0] * len(nodes)
    for assignment in assignments:
        if assignment.node is not None and assignment.memory is not None:
            used[nodes.index(assignment.node)] += assignment.memory.host_bytes
            if (assignment.role, assignment.index) == ("learner rank", 0) and placement.engines and model is not None:
                # The latest weights stay in the object store for engines that start later.
                used[nodes.index(assignment.node)] += model.num_parameters * placement.bytes_per_weight
    if nodes:
        used[0] += DRIVER_BYTES
        if placement.engines:
            used[0] += job.cluster.dispatchers * DISPATCHER_BYTES + GRADER_POOL_BYTES
    return tuple(used)


# -- what does not fit -------------------------------------------------------------------------------------------------


def _totals(placement: Placement, nodes: Sequence[Node]) -> Iterator[Problem]:
    for kind, name in KINDS.items():
        needed = sum(bundle.get(kind, 0.0) for bundle in placement.bundles)
        available = sum(node.resources[kind] for node in nodes)
        if needed > available:
            text = f"the job needs {needed:g} {name} ({_shares(placement, kind)}), the cluster has {available:g}"
            if kind == "GPU" and not available:
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


def _unassigned(placement: Placement, nodes: Sequence[Node], assigned: Sequence[int | None]) -> Iterator[Problem]:
    """The first bundle that no single node can hold although the cluster has enough in total."""
    for index, (bundle, node) in enumerate(zip(placement.bundles, assigned, strict=True)):
        if node is None:
            who = bundle_name(placement, index)
            kind = "GPU" if "GPU" in bundle else "CPU"
            if any(holds(other.resources, bundle) for other in nodes):
                text = f"{who} needs {text_of(bundle)} on one node, and no node has that much left beside the others"
            else:
                text = f"{who} needs {text_of(bundle)}, but no single node has that much"
            yield _too_few(kind, text)
            return  # the others fail for the same reason


def _too_few(kind: str, message: str) -> Problem:
    takes = "engine_cores, rank_cores" if kind == "CPU" else "engine_gpus"
    return Problem("too_few_resources", "cluster", message, f"lower engines, learner_ranks or {takes}, or add nodes")


def _setting_problems(job: JobSpec, placement: Placement) -> Iterator[Problem]:
    if placement.dtype == "bfloat16" and not placement.engine_gpus:
        message = "bfloat16 needs GPUs: on CPUs it crashes with illegal instructions, and learner and engine disagree"
        yield Problem("bfloat16_on_cpu", "cluster.dtype", message, "use float32, or auto")
    if not placement.colocated:
        return
    if placement.engine_gpus:
        message = "engines and learner ranks do not take turns on GPUs yet; on cores they do"
        remedy = "leave colocated out: each then has its own GPUs"
        yield Problem("colocated_on_gpus", "cluster.colocated", message, remedy)
    if job.method.type == "supervised":
        message = "a supervised job has no engines to take turns with"
        yield Problem("colocated_without_engines", "cluster.colocated", message, "leave it out")
    elif job.reinforcement.algorithm.max_staleness > 0:
        message = "engines that take turns with the learner never sample while it learns, so nothing can be stale"
        remedy = "set method.reinforcement.algorithm.max_staleness to 0, or leave colocated out"
        yield Problem("colocated_is_on_policy", "cluster.colocated", message, remedy)


def _memory_problems(
    job: JobSpec, assignments: Sequence[Assignment], nodes: Sequence[Node], host_bytes: Sequence[int]
) -> Iterator[Problem]:
    engine = next((assignment for assignment in assignments if assignment.role == "engine"), None)
    if engine is not None and engine.memory is not None and (engine.memory.num_sequences or 0.0) < 1.0:
        yield _no_cache(engine, engine.memory)
    for role in ("engine", "learner rank"):
        for assignment in assignments:
            if (
                assignment.role == role
                and assignment.memory is not None
                and (problem := _gpu_problem(job, assignment, assignment.memory))
            ):
                yield problem
                break  # the others are equal
    for node, used in zip(nodes, host_bytes, strict=True):
        if node.memory_bytes is not None and used > node.memory_bytes:
            message = f"{size(used)} of memory are needed on {node.name}, which has {size(node.memory_bytes)}"
            remedy = "use a node with more memory, or fewer engines and ranks; `agent-rft plan` shows the parts"
            yield Problem("too_little_memory", "cluster", message, remedy)


def _no_cache(engine: Assignment, memory: Memory) -> Problem:
    what = "what is left of a GPU for the cache" if engine.gpus else "the cache of a CPU engine, whose size is fixed,"
    message = f"{what} holds only {memory.num_sequences:.2f} sequences of the full context length"
    remedy = "lower cluster.context_length" + (", or raise cluster.engine_gpus" if engine.gpus else "")
    return Problem("no_room_for_context", "cluster.context_length", message, remedy)


def _gpu_problem(job: JobSpec, assignment: Assignment, memory: Memory) -> Problem | None:
    available = None if assignment.node is None else assignment.node.gpu_memory_bytes
    if available is None or memory.gpu_bytes <= available:
        return None
    largest = sorted(memory.gpu, key=lambda part: -memory.gpu[part])[:2]
    parts = ", ".join(f"{part} {size(memory.gpu[part])}" for part in largest)
    who = f"{assignment.role} {assignment.index}"
    message = f"{who} needs {size(memory.gpu_bytes)} of memory on a GPU ({parts}), which has {size(available)}"
    if assignment.role == "engine":
        remedy = "raise cluster.engine_gpus (tensor parallel), or lower context_length"
    elif "activations" in largest:
        remedy = "lower cluster.micro_batch_tokens or context_length"
    else:
        stage = job.cluster.zero_stage
        remedy = "raise cluster.learner_ranks" + (f" and set zero_stage to {stage + 1}" if stage < 3 else "")
    return Problem("too_little_gpu_memory", "cluster", message, remedy)


# -- formatting --------------------------------------------------------------------------------------------------------


def bundle_name(placement: Placement, index: int) -> str:
    """`engine 1`, `learner rank 0`, or `bundle 0 (engine and learner)` if they share it."""
    if placement.colocated:
        return f"bundle {index} (engine and learner)"
    if index < placement.engines:
        return f"engine {index}"
    return f"learner rank {index - placement.engines}"


def text_of(resources: Mapping[str, float]) -> str:
    """Resources as text, such as `2 cores, 1 GPUs`."""
    return ", ".join(f"{resources.get(kind, 0.0):g} {name}" for kind, name in KINDS.items())


def size(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.0f} MiB"
