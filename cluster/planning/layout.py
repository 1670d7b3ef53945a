"""A job laid out on nodes: where each engine and rank goes, what each node needs, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from actors.engine.sizes import GPU_MEMORY_SHARE
from cluster.planning.memory import CUDA_CONTEXT_BYTES, Memory, by_turns, engine_memory, rank_memory
from cluster.planning.misfits import memory_problems, resource_problems, setting_problems
from cluster.planning.node_sizes import NodeSizes, node_sizes, size_warnings
from cluster.planning.nodes import Node
from cluster.planning.placement import (
    AUTO_MICRO_BATCH_TOKENS,
    Assignment,
    Placement,
    Request,
    assign,
    micro_batch_sizes,
    placement_of,
)
from cluster.planning.units import GIB
from trainer.errors import Problem
from trainer.spec.job import JobSpec
from trainer.spec.plan import Choice

DRIVER_BYTES = round(0.7 * GIB)
"""Memory of the driver process: Python, torch, transformers, Ray."""
DISPATCHER_BYTES, GRADER_POOL_BYTES = round(0.3 * GIB), round(0.4 * GIB)

MIN_SEQUENCES_AT_ONCE = 4
"""Full-length sequences that an engine must hold beside a rank on its GPU: with fewer, taking turns samples faster."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A placement and what does not fit: `lacking` is solved by adding nodes, `problems` are not.

    `setting_problems` are settings that exclude each other; `memory_problems` are devices with too little memory.
    """

    placement: Placement
    nodes: tuple[Node, ...]
    assignments: tuple[Assignment, ...]
    host_bytes: tuple[int, ...]
    """Memory used on each node; that of driver, dispatchers and graders is counted on the first."""
    sizes: tuple[NodeSizes, ...]
    """Object store, shared memory and /tmp of each node."""
    lacking: tuple[Problem, ...]
    setting_problems: tuple[Problem, ...]
    memory_problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    """What the job may start without: sizes of nodes that Ray would not get along with for long."""
    choices: tuple[Choice, ...]
    """Values that memory has decided for settings that are `auto`, each with its reason."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        return (*self.setting_problems, *self.memory_problems)

    @property
    def fits(self) -> bool:
        return not self.lacking and not self.problems


def lay_out(request: Request) -> ClusterPlan:
    """Lay out a job with the largest micro-batch that fits in memory, or else with the smallest.

    Problems have no remedy yet: see plan.py.
    """
    placement, sizes = placement_of(request), micro_batch_sizes(request)
    for size in sizes[:-1]:
        plan = _lay_out(request, replace(placement, micro_batch_tokens=size))
        if not plan.memory_problems:
            return plan
    return _lay_out(request, replace(placement, micro_batch_tokens=sizes[-1]))


def _lay_out(request: Request, placement: Placement) -> ClusterPlan:
    job, nodes = request.job, request.nodes
    placement = _shared(request, placement)
    assigned = assign(placement.bundles, [node.resources for node in nodes])
    assignments = tuple(_assignments(request, placement, assigned))
    sizes = node_sizes(placement, nodes, assignments, request.model, job.optimizer.lora)
    host_bytes = _host_bytes(job, placement, nodes, assignments, sizes)
    return ClusterPlan(
        placement,
        nodes,
        assignments,
        host_bytes,
        sizes,
        lacking=tuple(resource_problems(placement, nodes, assigned)),
        setting_problems=tuple(setting_problems(job, placement)),
        memory_problems=tuple(memory_problems(assignments, nodes, host_bytes)),
        warnings=tuple(size_warnings(nodes, sizes)),
        choices=tuple(_choices(request, placement)),
    )


def _choices(request: Request, placement: Placement) -> Iterator[Choice]:
    if request.job.cluster.micro_batch_tokens != "auto" or not placement.learner_ranks:
        return
    size, context = placement.micro_batch_tokens, request.context_length
    if size < max(AUTO_MICRO_BATCH_TOKENS, context):
        why = f"as much as memory allows, and at least the context of {context:,} tokens"
    else:
        why = f"{AUTO_MICRO_BATCH_TOKENS:,} or the context of {context:,} tokens, whichever is larger"
    yield Choice("cluster.micro_batch_tokens", size, why)


def _assignments(request: Request, placement: Placement, assigned: Sequence[int | None]) -> Iterator[Assignment]:

    def node_of(bundle: int) -> Node | None:
        index = assigned[bundle]
        return None if index is None else request.nodes[index]

    for i in range(placement.engines):
        node = node_of(placement.bundle_of_engine(i))
        memory = _engine_memory(request, placement, None if node is None else node.usable_gpu_bytes)
        yield Assignment("engine", i, placement.engine_cores, placement.engine_gpus, node, memory)
    for i in range(placement.learner_ranks):
        node, memory = node_of(placement.bundle_of_rank(i)), _rank_memory(request, placement, i)
        yield Assignment("learner rank", i, placement.rank_cores, placement.rank_gpus, node, memory)


def _engine_memory(request: Request, placement: Placement, gpu_bytes: int | None) -> Memory | None:
    if request.model is None:
        return None
    memory = engine_memory(
        request.model,
        placement,
        gpus=placement.engine_gpus,
        itemsize=placement.bytes_per_weight,
        context_length=request.context_length,
        gpu_bytes=gpu_bytes,
        gpu_share=placement.gpu_share,
        lora=request.job.optimizer.lora,
    )
    return by_turns(memory) if placement.shares_gpus and placement.turns else memory


def _rank_memory(request: Request, placement: Placement, rank: int) -> Memory | None:
    if request.model is None:
        return None
    job = request.job
    memory = rank_memory(
        request.model,
        placement,
        on_gpu=placement.rank_gpus > 0,
        itemsize=placement.bytes_per_weight,
        longest=request.context_length,
        keeps_start=job.method.type == "reinforcement" and job.reinforcement.algorithm.kl_coef > 0,
        lora=job.optimizer.lora,
        rank=rank,
    )
    return by_turns(memory) if placement.shares_gpus and placement.turns else memory


def _shared(request: Request, placement: Placement) -> Placement:
    """How engines and ranks share GPUs: both at once if they fit on the smallest one, else they take turns."""
    if not placement.shares_gpus:
        return placement
    sizes = [node.gpu_memory_bytes for node in request.nodes if node.gpus and node.gpu_memory_bytes is not None]
    if not sizes:
        return placement
    total = min(sizes)
    usable = Node("", cores=0, gpu_memory_bytes=total).usable_gpu_bytes or 0
    at_once = replace(placement, turns=False)
    if (rank := _rank_memory(request, at_once, 0)) is not None:
        at_once = replace(at_once, gpu_share=_share(usable - rank.gpu_bytes, total))
        engine = _engine_memory(request, at_once, usable)
        if engine is not None and (engine.num_sequences or 0.0) >= MIN_SEQUENCES_AT_ONCE:
            return at_once
    return replace(placement, gpu_share=_share(usable - CUDA_CONTEXT_BYTES, total))


def _share(num_bytes: int, total: int) -> float:
    """An engine's share of a GPU, in whole percent and never more than usual."""
    return min(GPU_MEMORY_SHARE, max(1, 100 * num_bytes // total) / 100)


def _host_bytes(
    job: JobSpec,
    placement: Placement,
    nodes: Sequence[Node],
    assignments: Sequence[Assignment],
    sizes: Sequence[NodeSizes],
) -> tuple[int, ...]:
    used = [0] * len(nodes)
    for assignment in assignments:
        if assignment.node is not None and assignment.memory is not None:
            used[nodes.index(assignment.node)] += assignment.memory.host_bytes
    if nodes:
        used[0] += DRIVER_BYTES
        if placement.engines:
            used[0] += job.cluster.dispatchers * DISPATCHER_BYTES + GRADER_POOL_BYTES
    return tuple(by_actors + node.held_bytes for by_actors, node in zip(used, sizes, strict=True))
