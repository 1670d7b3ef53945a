"""What does not fit in a layout, without remedies: those need other layouts to be tried (remedies.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cluster.planning.memory import Memory
from cluster.planning.nodes import HEADROOM, Node
from cluster.planning.placement import KINDS, Assignment, Placement, bundle_name, holds, size, text_of
from trainer.errors import Problem
from trainer.spec.job import JobSpec

OF_WHICH = f"of which {HEADROOM:.0%} stay free"


def resource_problems(placement: Placement, nodes: Sequence[Node], assigned: Sequence[int | None]) -> Iterator[Problem]:
    """Cores or GPUs that the cluster lacks in total, or else on a single node."""
    short = list(_totals(placement, nodes))
    yield from short or _unassigned(placement, nodes, assigned)


def _totals(placement: Placement, nodes: Sequence[Node]) -> Iterator[Problem]:
    for kind, name in KINDS.items():
        needed = sum(bundle.get(kind, 0.0) for bundle in placement.bundles)
        available = sum(node.resources[kind] for node in nodes)
        if needed > available:
            text = f"the job needs {needed:g} {name} ({_shares(placement, kind)}), the cluster has {available:g}"
            if kind == "GPU" and not available:
                yield Problem("too_few_resources", "cluster.engine_gpus", text, "")
            else:
                yield Problem("too_few_resources", "cluster", text, "")


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
            if any(holds(other.resources, bundle) for other in nodes):
                text = f"{who} needs {text_of(bundle)} on one node, and no node has that much left beside the others"
            else:
                text = f"{who} needs {text_of(bundle)}, but no single node has that much"
            yield Problem("too_few_resources", "cluster", text, "")
            return  # the others fail for the same reason


def setting_problems(job: JobSpec, placement: Placement) -> Iterator[Problem]:
    """Settings that exclude each other."""
    if placement.dtype == "bfloat16" and not placement.engine_gpus:
        message = "bfloat16 needs GPUs: on CPUs it crashes with illegal instructions, and learner and engine disagree"
        yield Problem("bfloat16_on_cpu", "cluster.dtype", message, "")
    if placement.shared and (why := _why_not_shared(job, placement)) is not None:
        yield Problem("engines_not_shared", "cluster.share_engines", why, "")
    if not placement.colocated:
        return
    if placement.engine_gpus > 1:
        message = f"an engine of {placement.engine_gpus} GPUs shares none with learner ranks; one of 1 GPU does"
        yield Problem("colocated_on_gpus", "cluster.colocated", message, "")
    if placement.shares_gpus and job.cluster.weight_transport == "broadcast":
        message = "a broadcast needs a GPU of its own for each engine and rank, and here they share one"
        yield Problem("broadcast_on_shared_gpus", "cluster.weight_transport", message, "")
    if job.method.type == "supervised":
        message = "a supervised job has no engines to take turns with"
        yield Problem("colocated_without_engines", "cluster.colocated", message, "")


def _why_not_shared(job: JobSpec, placement: Placement) -> str | None:
    if job.method.type == "supervised":
        return "a supervised job has no engines to share"
    if placement.lora is None:
        return "jobs that train all weights share no engine: one engine has one model, and an adapter of each job"
    if placement.colocated:
        return "engines that take turns with the job's learner cannot sample for other jobs meanwhile"
    return None


def memory_problems(
    assignments: Sequence[Assignment], nodes: Sequence[Node], host_bytes: Sequence[int]
) -> Iterator[Problem]:
    """GPUs and nodes that would not keep HEADROOM free."""
    engines = [(each, each.memory) for each in assignments if each.role == "engine" and each.memory is not None]
    if engines:
        engine, memory = min(engines, key=lambda pair: pair[1].num_sequences or 0.0)
        if (memory.num_sequences or 0.0) < 1.0:
            yield _no_cache(engine, memory)
    for role in ("engine", "learner rank"):
        of_role = (_gpu_problem(each) for each in assignments if each.role == role)
        if problem := next(filter(None, of_role), None):
            yield problem  # the others are equal
    for node, used in zip(nodes, host_bytes, strict=True):
        if node.memory_bytes is not None and node.usable_bytes is not None and used > node.usable_bytes:
            has = f"{size(node.memory_bytes)}, {OF_WHICH}"
            message = f"{size(used)} of memory are needed on {node.name}, which has {has}"
            yield Problem("too_little_memory", "cluster", message, "")


def _no_cache(engine: Assignment, memory: Memory) -> Problem:
    what = "what is left of a GPU for the cache" if engine.gpus else "the cache of a CPU engine, whose size is fixed,"
    message = f"{what} holds only {memory.num_sequences:.2f} sequences of the full context length"
    return Problem("no_room_for_context", "cluster.context_length", message, "")


def _gpu_problem(assignment: Assignment) -> Problem | None:
    node, memory = assignment.node, assignment.memory
    if node is None or node.gpu_memory_bytes is None or node.usable_gpu_bytes is None or memory is None:
        return None
    if memory.gpu_bytes <= node.usable_gpu_bytes:
        return None
    largest = sorted(memory.gpu, key=lambda part: -memory.gpu[part])[:2]
    parts = ", ".join(f"{part} {size(memory.gpu[part])}" for part in largest)
    who, has = f"{assignment.role} {assignment.index}", f"{size(node.gpu_memory_bytes)}, {OF_WHICH}"
    message = f"{who} needs {size(memory.gpu_bytes)} of memory on a GPU ({parts}), which has {has}"
    return Problem("too_little_gpu_memory", "cluster", message, "")
