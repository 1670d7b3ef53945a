"""The smallest layout of a job that fits: fewest GPUs, then fewest cores.

Layouts that change the job least come first. The first ones change only how the job is divided: engines, GPUs of an
engine, ranks, ZeRO's stage, tokens per micro-batch unless they are `auto`, and whether engines and ranks share devices.
The next ones have one core each, then half the context, a quarter and so on, and the last ones use cores instead of
GPUs. The number of tries is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any, get_args

from cluster.planning.layout import lay_out
from cluster.planning.memory import engine_memory, rank_memory
from cluster.planning.placement import Placement, Request, Settings, micro_batch_sizes, placement_of
from trainer.spec.job import Auto
from trainer.spec.offload import Offload

OFFLOADS: tuple[Offload, ...] = get_args(Offload)
MIN_CONTEXT = 1024
MIN_MICRO_BATCH = 512
MAX_RANKS, MORE_RANKS = 128, 8
TRIES_AT_A_LEVEL, MAX_TRIES = 100, 400


def halves(number: int, least: int) -> list[int]:
    """Half of a number, a quarter and so on, down to `least`."""
    found = []
    while (number := number // 2) >= least:
        found.append(number)
    return found


def size_of(placement: Placement) -> tuple[float, float]:
    """Its GPUs and cores."""
    bundles = placement.bundles
    return sum(bundle.get("GPU", 0.0) for bundle in bundles), sum(bundle["CPU"] for bundle in bundles)


def propose(request: Request, *, context_stays: bool = False) -> Settings | None:
    """The settings to change for the smallest layout that fits, none if it is the job's own; None if none is found.

    If the `context_stays`, neither is it made shorter, nor are cores used instead of GPUs.
    """
    own, tries = lay_out(request), 0
    for level in islice(_levels(request), 2 if context_stays else None):
        for settings in islice(_layouts(level), TRIES_AT_A_LEVEL):
            plan = lay_out(level.request.with_settings(settings))
            if own.fits and size_of(plan.placement) >= size_of(own.placement):
                return {}
            if plan.fits:
                return _differing(request, level.fixed | settings)
            tries += 1
        if own.fits:
            return {}
        if tries >= MAX_TRIES:
            return None
    return None


def _differing(request: Request, settings: Settings) -> Settings:
    """The settings without those that the job has already, by what they mean on these nodes."""
    cluster, placement = request.job.cluster, placement_of(request)
    now = {f"cluster.{name}": getattr(cluster, name) for name in type(cluster).model_fields}
    now |= {"cluster.engine_gpus": placement.engine_gpus, "cluster.context_length": request.context_length}
    if cluster.colocated != "auto" and settings.get("cluster.colocated") == "auto":
        auto = placement_of(request.with_settings(settings)).colocated
        now["cluster.colocated"] = "auto" if auto == cluster.colocated else cluster.colocated
    return {path: value for path, value in settings.items() if now[path] != value}


@dataclass(frozen=True, slots=True)
class _Level:
    """A request with settings that all layouts of a level share."""

    request: Request
    fixed: dict[str, Any]
    on_gpus: bool


def _levels(request: Request) -> Iterator[_Level]:
    placement = placement_of(request)
    contexts = [request.context_length, *halves(request.context_length, MIN_CONTEXT)]
    devices = [True, False] if placement.engine_gpus and any(node.gpus for node in request.nodes) else [False]
    for on_gpus, context, one_core in product(devices, contexts, (False, True)):
        fixed: dict[str, Any] = {} if on_gpus else {"cluster.engine_gpus": 0}
        if context != request.context_length:
            fixed["cluster.context_length"] = context
        if one_core:
            fixed |= {"cluster.engine_cores": 1, "cluster.rank_cores": 1}
        if not on_gpus and request.job.cluster.dtype == "bfloat16":
            fixed["cluster.dtype"] = "auto"
        yield _Level(request.with_settings(fixed), fixed, on_gpus)


def _layouts(level: _Level) -> Iterator[dict[str, Any]]:
    """Settings of layouts, the smallest first; among equals, those that change the job least.

    What costs time on GPUs comes last, unless the job does so itself: sharing them, and keeping less on them.
    """
    request, cluster = level.request, level.request.job.cluster
    reinforcement = request.job.method.type == "reinforcement"
    on_policy = reinforcement and request.job.reinforcement.algorithm.max_staleness == 0
    together_too = reinforcement and request.learner and (level.on_gpus or on_policy)
    apart = level.on_gpus and not placement_of(request).colocated
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    # One engine is the smallest layout. The job's own number may fit where one does not: Ray packs bundles, so another
    # engine can move the ranks to a node with more memory.
    engine_counts = dict.fromkeys((1, cluster.engines)) if reinforcement else (cluster.engines,)
    shapes = product(
        engine_counts, _engine_gpus(level), (True, False) if together_too else (False,), _shapes_of_ranks(level)
    )
    for engines, gpus, together, (ranks, stage, micro, offload) in shapes:
        if together and gpus > 1:
            continue
        settings = {
            "cluster.engines": engines,
            "cluster.engine_gpus": gpus,
            "cluster.learner_ranks": ranks,
            "cluster.zero_stage": stage,
            "cluster.micro_batch_tokens": micro,
            "cluster.offload": offload,
            "cluster.colocated": "auto",
        }
        if together != placement_of(request.with_settings(settings)).colocated:
            settings["cluster.colocated"] = together
        changed = request.with_settings(settings)
        size = size_of(placement_of(changed))
        smaller = 0 if micro == "auto" else -micro
        changes = stage != cluster.zero_stage, micro != cluster.micro_batch_tokens, smaller, stage, ranks, gpus
        slower = (apart and together) + OFFLOADS.index(offload) - OFFLOADS.index(cluster.offload)
        found[(slower, *size, *changes, together)] = settings
    return (found[key] for key in sorted(found))


def _engine_gpus(level: _Level) -> list[int]:
    """Numbers of GPUs with which an engine holds a sequence of full length in the largest GPU that there is."""
    request = level.request
    own = placement_of(request)
    if not level.on_gpus or not own.engines:
        return [own.engine_gpus]
    per_node = int(max(node.gpus for node in request.nodes))
    numbers = sorted({own.engine_gpus, *(number for number in (1, 2, 4, 8, 16) if number <= per_node)})
    largest = _largest([node.usable_gpu_bytes for node in request.nodes if node.gpus])
    if request.model is None or largest is None:
        return numbers
    sequences = {
        number: engine_memory(
            request.model,
            own,
            gpus=number,
            itemsize=own.bytes_per_weight,
            context_length=request.context_length,
            gpu_bytes=largest,
            lora=request.job.optimizer.lora,
        ).num_sequences
        for number in numbers
    }
    return [number for number in numbers if (sequences[number] or 0.0) >= 1.0]


RankShape = tuple[int, int, int | Auto, Offload]
"""Settings of the ranks: their number, ZeRO's stage, tokens per micro-batch, and what is offloaded."""


def _shapes_of_ranks(level: _Level) -> list[RankShape]:
    """Return shapes with which a rank alone fits the largest device: the fewest ranks first.

    More ranks than the fewest are among them, because nodes differ.
    """
    request, cluster = level.request, level.request.job.cluster
    placement = placement_of(request)
    if not placement.learner_ranks:
        return [(cluster.learner_ranks, cluster.zero_stage, cluster.micro_batch_tokens, cluster.offload)]
    devices = sum(node.gpus if level.on_gpus else node.cores // placement.rank_cores for node in request.nodes)
    gpu = _largest([node.usable_gpu_bytes for node in request.nodes if node.gpus]) if level.on_gpus else None
    host = _largest([node.usable_bytes for node in request.nodes])
    found: list[RankShape] = []
    offloads = OFFLOADS[OFFLOADS.index(cluster.offload) :] if level.on_gpus else (cluster.offload,)
    stages = dict.fromkeys((cluster.zero_stage, 1, 2, 3))
    for offload, stage, micro in product(offloads, stages, _micro_batches(request)):
        fitting = (
            (ranks, stage, micro, offload)
            for ranks in range(1, min(MAX_RANKS, int(devices)) + 1)
            if _rank_fits(request, placement, (ranks, stage, micro, offload), gpu, host)
        )
        found += islice(fitting, MORE_RANKS)
    return found


def _micro_batches(request: Request) -> list[int | Auto]:
    """Return the job's size of micro-batches, and its halves if it is a number.

    The halves end near the context length: a longer sequence is computed alone, so smaller ones save no memory.
    """
    own = request.job.cluster.micro_batch_tokens
    if own == "auto":  # each layout finds the size that fits
        return [own]
    smaller = halves(own, min(own, max(MIN_MICRO_BATCH, request.context_length // 2)))
    return [own, *smaller]


def _rank_fits(
    request: Request,
    placement: Placement,
    shape: RankShape,
    gpu: int | None,
    host: int | None,
) -> bool:
    ranks, stage, micro, offload = shape
    if request.model is None:
        return True
    memory = rank_memory(
        request.model,
        replace(
            placement,
            learner_ranks=ranks,
            zero_stage=stage,
            micro_batch_tokens=micro_batch_sizes(request)[-1] if micro == "auto" else micro,
            offload=offload,
        ),
        on_gpu=placement.rank_gpus > 0,
        itemsize=placement.bytes_per_weight,
        longest=request.context_length,
        keeps_start=False,
        lora=request.job.optimizer.lora,
    )
    return (gpu is None or memory.gpu_bytes <= gpu) and (host is None or memory.host_bytes <= host)


def _largest(sizes: Sequence[int | None]) -> int | None:
    """The largest of them; None if one is unknown."""
    known = [size for size in sizes if size is not None]
    return max(known, default=0) if len(known) == len(sizes) else None
