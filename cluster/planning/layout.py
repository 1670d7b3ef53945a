"""Layout of a job on nodes: the node of each engine and learner rank, and the memory that each node needs.

A layout also lists its problems, such as too few GPUs or too little memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice

from agent_rft.actors.engine.engine_memory import GPU_MEMORY_SHARE
from agent_rft.cluster.planning.memory_estimates import CUDA_CONTEXT_BYTES, GIB, MemoryEstimate
from agent_rft.cluster.planning.placement import (
    AUTO_MICRO_BATCH_TOKENS,
    KINDS,
    NodeAssignment,
    Placement,
    PlanRequest,
    RequiredNodeSizes,
    assign_nodes,
    bundle_name,
    estimate_node_sizes,
    format_bytes,
    format_resources,
    has_resources,
    micro_batch_sizes,
    num_dispatchers,
    size_warnings,
    total_resources,
)
from agent_rft.cluster.planning.placement_search import (
    MIN_SEQUENCES_AT_ONCE,
    estimate_engine_memory,
    estimate_rank_memory,
    search_placements,
)
from agent_rft.cluster.planning.plan_nodes import HEADROOM, Node
from agent_rft.errors import Problem
from agent_rft.events import SettingChosen
from agent_rft.spec.job import JobSpec

RESERVE = f"and {HEADROOM:.0%} of this memory must stay free"


def find_resource_problems(
    placement: Placement, nodes: Sequence[Node], assigned: Sequence[int | None]
) -> Iterator[Problem]:
    """Yield problems if the cluster has too few cores or GPUs.

    First the totals are checked. If the totals are sufficient, the function checks whether each bundle fits on a node.
    """
    short = list(_total_resource_problems(placement, nodes))
    yield from short or _unassigned_problem(placement, nodes, assigned)


def _total_resource_problems(placement: Placement, nodes: Sequence[Node]) -> Iterator[Problem]:
    for kind, name in KINDS.items():
        needed = sum(bundle.get(kind, 0.0) for bundle in placement.bundles)
        available = sum(node.resources[kind] for node in nodes)
        if needed > available:
            parts = _describe_parts(placement, kind)
            text = f"the job needs {needed:g} {name} ({parts}), but the cluster has {available:g}"
            if kind == "GPU" and not available:
                yield Problem("too_few_resources", "cluster.engine_gpus", text, "")
            else:
                yield Problem("too_few_resources", "cluster", text, "")


def _describe_parts(placement: Placement, kind: str) -> str:
    if placement.colocated:
        return f"{len(placement.bundles)} x {placement.bundles[0].get(kind, 0):g}, shared by engines and learner ranks"
    each = {"CPU": (placement.engine_cores, placement.rank_cores), "GPU": (placement.engine_gpus, placement.rank_gpus)}
    of_engine, of_rank = each[kind]
    parts = (("engines", placement.engines, of_engine), ("learner ranks", placement.learner_ranks, of_rank))
    return ", ".join(f"{name} {count} x {each:g}" for name, count, each in parts if count)


def _unassigned_problem(
    placement: Placement, nodes: Sequence[Node], assigned: Sequence[int | None]
) -> Iterator[Problem]:
    """Yield a problem for the first bundle that no single node can hold, although the cluster has enough in total."""
    for index, (bundle, node) in enumerate(zip(placement.bundles, assigned, strict=True)):
        if node is None:
            who = bundle_name(placement, index)
            if any(has_resources(other.resources, bundle) for other in nodes):
                text = f"{who} needs {format_resources(bundle)} on one node, but no node has that much free next to "
                text += "the job's other parts"
            else:
                text = f"{who} needs {format_resources(bundle)}, but no single node has that much"
            yield Problem("too_few_resources", "cluster", text, "")
            return  # the others fail for the same reason


def find_setting_problems(job: JobSpec, placement: Placement) -> Iterator[Problem]:
    """Yield a problem for each pair of settings that cannot be combined."""
    if placement.dtype == "bfloat16" and not placement.engine_gpus:
        message = "bfloat16 requires GPUs: many CPUs lack its instructions, and learner and engine round differently"
        yield Problem("bfloat16_on_cpu", "cluster.dtype", message, "")
    if placement.has_shared_engines and (why := _why_not_shared(job, placement)) is not None:
        yield Problem("engines_not_shared", "cluster.share_engines", why, "")
    if not placement.colocated:
        return
    if placement.engine_gpus > 1:
        message = (
            f"an engine with {placement.engine_gpus} GPUs cannot share them with learner ranks; only an engine with 1 "
            "GPU can share its GPU"
        )
        yield Problem("colocated_multi_gpu_engine", "cluster.colocated", message, "")
    if placement.shares_gpus and job.cluster.weight_transport == "broadcast":
        message = "a broadcast requires a separate GPU for each engine and rank, but here they share GPUs"
        yield Problem("broadcast_on_shared_gpus", "cluster.weight_transport", message, "")
    if job.method.type == "supervised":
        message = "a supervised job has no engines that could share resources with the learner"
        yield Problem("colocated_without_engines", "cluster.colocated", message, "")


def _why_not_shared(job: JobSpec, placement: Placement) -> str | None:
    if job.method.type == "supervised":
        return "a supervised job has no engines to share"
    if placement.lora is None:
        return "a shared engine has one base model and an adapter per job, so the job cannot train all weights"
    if placement.colocated:
        return "engines that share resources with the job's learner cannot sample for other jobs"
    return None


def find_memory_problems(
    assignments: Sequence[NodeAssignment], nodes: Sequence[Node], host_bytes: Sequence[int]
) -> Iterator[Problem]:
    """Yield problems of GPUs, nodes and engine caches that have too little memory.

    The fraction HEADROOM of memory must stay free. An engine's cache must hold at least one full-length sequence.
    """
    engines = [(each, each.memory) for each in assignments if each.role == "engine" and each.memory is not None]
    if engines:
        engine, memory = min(engines, key=lambda pair: pair[1].num_sequences or 0.0)
        if (memory.num_sequences or 0.0) < 1.0:
            yield _cache_problem(engine, memory)
    for role in ("engine", "learner rank"):
        of_role = (_gpu_problem(each) for each in assignments if each.role == role)
        if problem := next(filter(None, of_role), None):
            yield problem  # the others are equal
    for node, used in zip(nodes, host_bytes, strict=True):
        if node.memory_bytes is not None and node.usable_bytes is not None and used > node.usable_bytes:
            has = f"{format_bytes(node.memory_bytes)}, {RESERVE}"
            message = f"{format_bytes(used)} of memory is needed on {node.name}, which has {has}"
            yield Problem("too_little_memory", "cluster", message, "")


def _cache_problem(engine: NodeAssignment, memory: MemoryEstimate) -> Problem:
    cache = "the memory left for the cache on a GPU" if engine.gpus else "the fixed-size cache of a CPU engine"
    message = f"{cache} holds only {memory.num_sequences:.2f} sequences of the full context length"
    return Problem("too_little_cache_memory", "cluster.context_length", message, "")


def _gpu_problem(assignment: NodeAssignment) -> Problem | None:
    node, memory = assignment.node, assignment.memory
    if node is None or node.gpu_memory_bytes is None or node.usable_gpu_bytes is None or memory is None:
        return None
    if memory.gpu_bytes <= node.usable_gpu_bytes:
        return None
    largest = sorted(memory.gpu, key=lambda part: -memory.gpu[part])[:2]
    parts = ", ".join(f"{part} {format_bytes(memory.gpu[part])}" for part in largest)
    who, has = f"{assignment.role} {assignment.index}", f"{format_bytes(node.gpu_memory_bytes)}, {RESERVE}"
    message = f"{who} needs {format_bytes(memory.gpu_bytes)} of memory on each GPU ({parts}), but a GPU has {has}"
    return Problem("too_little_gpu_memory", "cluster", message, "")


DRIVER_BYTES = round(0.7 * GIB)
"""Memory of the driver process: Python, torch, transformers, Ray."""
DISPATCHER_BYTES, GRADER_POOL_BYTES = round(0.3 * GIB), round(0.4 * GIB)

MAX_TRIES = 600
"""Maximum number of placements to try. With this limit, planning for many nodes takes only seconds."""
CHOSEN = {"engines", "engine_gpus", "learner_ranks", "zero_stage", "offload", "max_num_seqs"}
"""Settings of `cluster` that define a layout. If none of them is `auto`, the planner does not explain the layout."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Layout of a job: its placement on nodes and its problems.

    More nodes can solve `resource_problems`. They cannot solve `problems`, which contains all other problems.
    """

    placement: Placement
    nodes: tuple[Node, ...]
    assignments: tuple[NodeAssignment, ...]
    host_bytes: tuple[int, ...]
    """Bytes of host memory needed on each node; the first node includes driver, dispatchers and grader pool."""
    sizes: tuple[RequiredNodeSizes, ...]
    """Required sizes of the object store, /dev/shm and /tmp, for each node."""
    resource_problems: tuple[Problem, ...]
    setting_problems: tuple[Problem, ...]
    memory_problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    """Warnings about nodes whose object store, /dev/shm or /tmp is too small. The job can start anyway."""
    choices: tuple[SettingChosen, ...]
    """Values chosen by the planner for settings that are `auto`, each with its reason."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        return (*self.setting_problems, *self.memory_problems)

    @property
    def fits(self) -> bool:
        return not self.resource_problems and not self.problems

    @property
    def shortage(self) -> tuple[int, int]:
        """Distance from a plan that fits: (number of resource and setting problems, missing bytes of memory)."""
        missing = 0
        for node, used in zip(self.nodes, self.host_bytes, strict=True):
            if node.usable_bytes is not None:
                missing += max(0, used - node.usable_bytes)
        for place in self.assignments:
            if place.node is not None and place.memory is not None and place.node.usable_gpu_bytes is not None:
                missing += max(0, place.memory.gpu_bytes - place.node.usable_gpu_bytes)
        return len(self.resource_problems) + len(self.setting_problems), missing


def lay_out(request: PlanRequest, *, fewest_gpus: bool = False, max_tries: int = MAX_TRIES) -> ClusterPlan:
    """Lay out a job with the first placement that fits, or else the placement with the smallest `shortage`.

    If the job fits on free GPUs, the layout uses only free GPUs. Otherwise it may use GPUs that other jobs currently
    hold. With `fewest_gpus`, placements with fewer GPUs are tried first. At most `max_tries` placements are tried. The
    problems of the plan have no fixes yet; `plan_cluster` adds the fixes.
    """
    if any(node.held_gpus for node in request.nodes):
        plan = lay_out_on_free_nodes(request, fewest_gpus=fewest_gpus, max_tries=max_tries)
        if plan is not None:
            return plan
    return _first_that_fits(request, fewest_gpus, max_tries)


def lay_out_on_free_nodes(
    request: PlanRequest, *, fewest_gpus: bool = False, max_tries: int = MAX_TRIES
) -> ClusterPlan | None:
    """Lay out a job on the GPUs and cores that no other job holds; None if it does not fit on them."""
    free = replace(request, nodes=tuple(node.with_free_resources() for node in request.nodes))
    plan = _first_that_fits(free, fewest_gpus, max_tries)
    return plan if plan.fits else None


def _first_that_fits(request: PlanRequest, fewest_gpus: bool, max_tries: int) -> ClusterPlan:
    closest: ClusterPlan | None = None
    for placement in islice(search_placements(request, fewest_gpus=fewest_gpus), max_tries):
        plan = _with_micro_batches(request, placement)
        if plan.fits:
            return plan
        if closest is None or plan.shortage < closest.shortage:
            closest = plan
    assert closest is not None  # there is always one placement
    return closest


def _with_micro_batches(request: PlanRequest, placement: Placement) -> ClusterPlan:
    """Return the plan with the largest micro-batch that fits in memory, or else the smallest micro-batch."""
    *larger, smallest = micro_batch_sizes(request)
    last = _lay_out(request, replace(placement, micro_batch_tokens=smallest))
    if last.memory_problems:
        return last
    for tokens in larger:
        plan = _lay_out(request, replace(placement, micro_batch_tokens=tokens))
        if not plan.memory_problems:
            return plan
    return last


def _lay_out(request: PlanRequest, placement: Placement) -> ClusterPlan:
    job, nodes = request.job, request.nodes
    placement = _choose_sharing(request, placement)
    assigned = assign_nodes(placement.bundles, [node.resources for node in nodes])
    assignments = tuple(_assignments(request, placement, assigned))
    sizes = estimate_node_sizes(placement, nodes, assignments, request.model, placement.lora)
    host_bytes = _host_bytes(job, placement, nodes, assignments, sizes)
    return ClusterPlan(
        placement,
        nodes,
        assignments,
        host_bytes,
        sizes,
        resource_problems=tuple(find_resource_problems(placement, nodes, assigned)),
        setting_problems=tuple(find_setting_problems(job, placement)),
        memory_problems=tuple(find_memory_problems(assignments, nodes, host_bytes)),
        warnings=tuple(size_warnings(nodes, sizes)),
        choices=tuple(_setting_choices(request, placement)),
    )


def _setting_choices(request: PlanRequest, placement: Placement) -> Iterator[SettingChosen]:
    """Yield the values chosen for settings that are `auto`; on CPUs only the micro-batch size is chosen."""
    if placement.engine_gpus and (why := _why_layout(request, placement)):
        yield SettingChosen(setting="cluster", value=layout_text(placement), reason=why)
        yield from _lora_choice(request, placement)
    yield from _micro_batch_choice(request, placement)


def layout_text(placement: Placement) -> str:
    """Return the layout as text, such as `4 engines of 1 GPU and 4 learner ranks, ZeRO stage 2`."""
    parts = []
    if placement.engines:
        engines, gpus = placement.engines, placement.engine_gpus
        parts.append(f"{engines} engine{'s' * (engines > 1)} of {gpus} GPU{'s' * (gpus > 1)}")
    if ranks := placement.learner_ranks:
        parts.append(f"{ranks} learner rank{'s' * (ranks > 1)}")
    text = " and ".join(parts)
    if placement.learner_ranks:
        text += f", ZeRO stage {placement.zero_stage}"
        text += "" if placement.offload == "none" else f", {placement.offload.replace('_', ' ')} offloaded"
    return text + (f", {placement.max_num_seqs} sequences at a time in each engine" if placement.engines else "")


def _why_layout(request: PlanRequest, placement: Placement) -> str:
    """Return the reasons for the layout; empty if the job sets all values that define a layout."""
    cluster = request.job.cluster
    if not any(getattr(cluster, name) == "auto" for name in CHOSEN):
        return ""
    total = sum(int(node.gpus) for node in request.nodes)
    gpus, _ = total_resources(placement)
    parts = [f"{gpus:g} of {total} GPUs"]
    if held := sum(node.held_gpus for node in request.nodes):
        parts[0] += f", other jobs hold {held:g}"
    if placement.engines and placement.learner_ranks and not placement.colocated:
        parts.append("divided as evenly as memory allows")
    if placement.learner_ranks and cluster.zero_stage == "auto":
        parts.append("the lowest ZeRO stage that fits")
    return ", ".join(parts)


def _lora_choice(request: PlanRequest, placement: Placement) -> Iterator[SettingChosen]:
    """Yield the choice of `algorithm.lora` if the planner chose LoRA.

    The planner chooses LoRA if the model is an adapter, or if full training does not fit without offload.
    """
    setting = f"method.{request.job.method.type}.algorithm.lora"
    if request.job.optimizer_settings.lora != "auto" or placement.lora is None or not placement.learner_ranks:
        return
    if request.adapter is not None:
        why = "the model is an adapter of this rank, and training continues the adapter"
        yield SettingChosen(setting=setting, value=f"rank {placement.lora.rank}", reason=why)
        return
    full = estimate_rank_memory(request, replace(placement, lora=None, offload="none", zero_stage=3), 0)
    gpus = [node.gpu_memory_bytes for node in request.nodes if node.gpus and node.gpu_memory_bytes is not None]
    if full is None or not gpus or request.model is None:
        return
    number, needed = f"{request.model.num_parameters / 1e9:.3g}B parameters", format_bytes(full.gpu_bytes)
    why = f"training all {number} needs {needed} without offload, but a GPU has {format_bytes(max(gpus))}; "
    why += "to train all parameters anyway, set lora to off"
    yield SettingChosen(setting=setting, value=f"rank {placement.lora.rank}", reason=why)


def _micro_batch_choice(request: PlanRequest, placement: Placement) -> Iterator[SettingChosen]:
    if request.job.cluster.micro_batch_tokens != "auto" or not placement.learner_ranks:
        return
    size, context = placement.micro_batch_tokens, request.context_length
    if size < max(AUTO_MICRO_BATCH_TOKENS, context):
        why = f"as many as memory allows, but at least the context length of {context:,} tokens"
    else:
        why = f"{AUTO_MICRO_BATCH_TOKENS:,} tokens or the context length of {context:,}, whichever is larger"
    yield SettingChosen(setting="cluster.micro_batch_tokens", value=size, reason=why)


def _assignments(
    request: PlanRequest, placement: Placement, assigned: Sequence[int | None]
) -> Iterator[NodeAssignment]:

    def find_node(bundle: int) -> Node | None:
        index = assigned[bundle]
        return None if index is None else request.nodes[index]

    engine_memory = cache(partial(estimate_engine_memory, request, placement))
    for i in range(placement.engines):
        node = find_node(placement.engine_bundle(i))
        memory = engine_memory(None if node is None else node.usable_gpu_bytes)
        yield NodeAssignment("engine", i, placement.engine_cores, placement.engine_gpus, node, memory)
    rank_memory = cache(partial(estimate_rank_memory, request, placement))
    for i in range(placement.learner_ranks):
        node, memory = find_node(placement.rank_bundle(i)), rank_memory(min(i, 1))  # all but the first are equal
        yield NodeAssignment("learner rank", i, placement.rank_cores, placement.rank_gpus, node, memory)


def _choose_sharing(request: PlanRequest, placement: Placement) -> Placement:
    """Return the placement with `takes_turns` and `gpu_share` set, if engines and ranks share GPUs.

    An engine and a rank run concurrently if both fit on the smallest GPU; otherwise the GPU is time-shared.
    """
    if not placement.shares_gpus:
        return placement
    sizes = [node.gpu_memory_bytes for node in request.nodes if node.gpus and node.gpu_memory_bytes is not None]
    if not sizes:
        return placement
    total = min(sizes)
    usable = Node("", cores=0, gpu_memory_bytes=total).usable_gpu_bytes or 0
    concurrent = replace(placement, takes_turns=False)
    if (rank := estimate_rank_memory(request, concurrent, 0)) is not None:
        concurrent = replace(concurrent, gpu_share=_to_gpu_share(usable - rank.gpu_bytes, total))
        engine = estimate_engine_memory(request, concurrent, usable)
        if engine is not None and (engine.num_sequences or 0.0) >= MIN_SEQUENCES_AT_ONCE:
            return concurrent
    return replace(placement, gpu_share=_to_gpu_share(usable - CUDA_CONTEXT_BYTES, total))


def _to_gpu_share(num_bytes: int, total: int) -> float:
    """Return an engine's share of a GPU's memory: `num_bytes / total`, rounded down to a multiple of 1 %.

    The share is at least 1 % and at most GPU_MEMORY_SHARE.
    """
    return min(GPU_MEMORY_SHARE, max(1, 100 * num_bytes // total) / 100)


def _host_bytes(
    job: JobSpec,
    placement: Placement,
    nodes: Sequence[Node],
    assignments: Sequence[NodeAssignment],
    sizes: Sequence[RequiredNodeSizes],
) -> tuple[int, ...]:
    used = [0] * len(nodes)
    for assignment in assignments:
        if assignment.node is not None and assignment.memory is not None:
            used[nodes.index(assignment.node)] += assignment.memory.host_bytes
    if nodes:
        used[0] += DRIVER_BYTES
        if placement.engines:
            method = job.method.reinforcement  # None if a supervised job is colocated, which is a problem by itself
            dispatchers = num_dispatchers(() if method is None else method.tools, placement)
            used[0] += dispatchers * DISPATCHER_BYTES + GRADER_POOL_BYTES
    return tuple(by_actors + node.held_bytes for by_actors, node in zip(used, sizes, strict=True))
