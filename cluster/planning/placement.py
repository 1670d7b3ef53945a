"""Placement of engines and learner ranks on nodes, computed before anything starts.

Each engine (with all its GPUs) and each learner rank is a bundle of resources, which must fit on a single node.
`Reservations` (cluster/ray_cluster/reservations.py) reserves the same bundles in Ray.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from agent_rft.actors.engine.engine_memory import GPU_MEMORY_SHARE
from agent_rft.cluster.planning.memory_estimates import GIB, MemoryEstimate
from agent_rft.cluster.planning.model_shape import ModelShape
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.errors import Problem
from agent_rft.spec.endpoints import PositiveInt, ProcessCount, ToolSpec
from agent_rft.spec.job import JobSpec
from agent_rft.spec.model_options import LoraSpec
from agent_rft.spec.offload import Offload
from agent_rft.trainer.learner.weight_buckets import MAX_BUCKET_BYTES

KINDS = {"CPU": "cores", "GPU": "GPUs"}

Bundle = dict[str, float]
Role = Literal["engine", "learner rank"]
Settings = Mapping[str, Any]
"""Values of settings by path in a job, such as `cluster.zero_stage`."""

AUTO_MICRO_BATCH_TOKENS, MICRO_BATCH_STEP = 8192, 1024
CALLS_PER_DISPATCHER = 1024
"""Maximum number of concurrent tool calls per dispatcher.

A dispatcher serves 2,400 calls per second in `benchmarks.dispatcher`. A rollout is assumed to make at most two calls
per second, so 1,024 rollouts make at most 2,048 calls per second."""


@dataclass(frozen=True, slots=True)
class RecordedLayout:
    """Layout settings of `cluster` with which a run began; None for a value that was not recorded.

    A resumed run uses these values for settings that are `auto`, if the layout still fits.
    """

    micro_batch_tokens: PositiveInt | None = None
    engines: ProcessCount | None = None
    engine_cores: ProcessCount | None = None
    engine_gpus: int | None = None
    learner_ranks: ProcessCount | None = None
    rank_cores: ProcessCount | None = None
    zero_stage: int | None = None
    offload: Offload | None = None
    max_num_seqs: PositiveInt | None = None

    @classmethod
    def from_placement(cls, placement: Placement) -> RecordedLayout:
        """Return the values of `placement` that a run records. A run that only grades records no values."""
        if not placement.learner_ranks:
            return cls()
        values = {name: getattr(placement, name) for name in RECORDED}
        return cls(**values | {"engines": placement.engines or None})


RECORDED = tuple(field.name for field in fields(RecordedLayout))


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Request to lay out a job on nodes.

    Attributes:
        job: The job.
        nodes: Nodes that the job may use.
        model: Sizes of the job's model; None if they are unknown, so that memory is not checked.
        context_length: Context length in tokens.
        trains: True if the run trains, False if it only grades.
        recorded_layout: Layout with which the resumed run began; all its values are None for a new run.
        adapter: Setting `lora` of the adapter from which the job starts; None if the model folder has all weights.
        can_use_lora: Whether learner and engines support adapters of the model.
        max_gpus: Maximum number of GPUs to choose; None for no limit.
    """

    job: JobSpec
    nodes: tuple[Node, ...]
    model: ModelShape | None
    context_length: int
    trains: bool = True
    recorded_layout: RecordedLayout = RecordedLayout()
    adapter: LoraSpec | None = None
    can_use_lora: bool = True
    max_gpus: int | None = None

    def with_settings(self, settings: Settings) -> PlanRequest:
        job = self.job
        for path, value in settings.items():
            job = _with_setting(job, path.split("."), value)
        context = settings.get("cluster.context_length", self.context_length)
        return replace(self, job=job, context_length=context)


Model = TypeVar("Model", bound=BaseModel)


def _with_setting(model: Model, path: Sequence[str], value: Any) -> Model:
    name, *rest = path
    return model.model_copy(update={name: _with_setting(getattr(model, name), rest, value) if rest else value})


@dataclass(frozen=True, slots=True)
class Placement:
    """Settings of `cluster` with every `auto` resolved: resources and limits of each engine and each learner rank.

    If `colocated`, engines and ranks share bundles. With `takes_turns`, they use the shared cores or GPUs alternately.
    Without `takes_turns`, they run concurrently, each with a part of the GPU's memory; this is possible only on GPUs.
    `gpu_share` is the share of a GPU's memory that an engine takes while it samples. With `has_shared_engines`, the
    job's engines are shared with other jobs: they count as the job's engines, but the job does not reserve them. `lora`
    is the adapter to train; None if all weights are trained.
    """

    engines: int
    engine_cores: int
    engine_gpus: int
    learner_ranks: int
    rank_cores: int
    rank_gpus: int
    dtype: Literal["float32", "bfloat16"]
    max_num_seqs: int
    zero_stage: int
    offload: Offload
    micro_batch_tokens: int
    lora: LoraSpec | None = None
    colocated: bool = False
    takes_turns: bool = False
    gpu_share: float = GPU_MEMORY_SHARE
    has_shared_engines: bool = False

    @property
    def shares_gpus(self) -> bool:
        return self.colocated and self.rank_gpus > 0

    @property
    def bytes_per_weight(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def bundles(self) -> list[Bundle]:
        """Bundles of resources: one for each engine, then one for each rank.

        If `colocated`, engines and ranks share bundles. All resources of a bundle must be on the same node.
        """
        if not self.colocated:
            engine, rank = (
                _bundle(self.engine_cores, self.engine_gpus),
                _bundle(self.rank_cores, self.rank_gpus),
            )
            return [engine] * self.engines + [rank] * self.learner_ranks
        together = self._ranks_per_bundle
        num_bundles = max(self.engines, math.ceil(self.learner_ranks / together))
        cores = max(self.engine_cores, self.rank_cores * together)
        return [_bundle(cores, max(self.engine_gpus, self.rank_gpus * together))] * num_bundles

    def without_learner(self) -> Placement:
        """Return a placement with the same engines and no learner ranks. The engines are not shared with other jobs."""
        return replace(
            self,
            learner_ranks=0,
            colocated=False,
            takes_turns=False,
            gpu_share=GPU_MEMORY_SHARE,
            has_shared_engines=False,
        )

    @property
    def reserved_bundles(self) -> range:
        """Indices of the bundles that the job itself reserves."""
        return range(self.engines if self.has_shared_engines else 0, len(self.bundles))

    def engine_bundle(self, index: int) -> int:
        return index

    def rank_bundle(self, index: int) -> int:
        return index // self._ranks_per_bundle if self.colocated else self.engines + index

    @property
    def _ranks_per_bundle(self) -> int:
        """Number of ranks in a shared bundle: one for each GPU of an engine."""
        return max(1, self.engine_gpus)


def num_dispatchers(tools: Sequence[ToolSpec], placement: Placement) -> int:
    """Return the number of dispatchers of a job: one per CALLS_PER_DISPATCHER concurrent calls, rounded up.

    The number of concurrent calls is the smaller of two numbers: the sequences that all engines decode at a time, and
    the sum of the tools' `max_concurrency`.
    """
    sequences = placement.engines * placement.max_num_seqs
    calls = min(sequences, sum(tool.max_concurrency for tool in tools))
    return max(1, math.ceil(calls / CALLS_PER_DISPATCHER))


def _bundle(cores: int, gpus: int) -> Bundle:
    return {"CPU": float(cores)} | ({"GPU": float(gpus)} if gpus else {})


@dataclass(frozen=True, slots=True)
class NodeAssignment:
    """Planned node and memory of one engine or rank; Ray may choose an equivalent node.

    `node` is None if the engine or rank fits on no node; `memory` is None if the model is unknown.
    """

    role: Role
    index: int
    cores: float
    gpus: float
    node: Node | None
    memory: MemoryEstimate | None


def micro_batch_sizes(request: PlanRequest) -> list[int]:
    """Return the micro-batch sizes in tokens that the job may use, largest first.

    If the job sets a size, the list has only this size. Otherwise the list goes from 8,192 down to the context length
    in steps of 1,024. If the context length is more than 8,192, the list has only the context length. A smaller size
    would save no memory, because a sequence is never divided. A resumed run tries its recorded size first, unless the
    context length exceeds that size.
    """
    setting, longest = request.job.cluster.micro_batch_tokens, request.context_length
    if setting != "auto":
        return [setting]
    sizes = [*range(AUTO_MICRO_BATCH_TOKENS, longest, -MICRO_BATCH_STEP), longest]
    recorded = request.recorded_layout.micro_batch_tokens
    if recorded is None or recorded < longest:
        return sizes
    return [recorded, *(size for size in sizes if size < recorded)]


# -- assignment --------------------------------------------------------------------------------------------------------


def assign_nodes(bundles: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> list[int | None]:
    """Return the index of a node for each bundle, packed like Ray's PACK strategy; None for a bundle that does not fit.

    The largest bundle is assigned first. Nodes that already have a bundle are preferred. Among equally
    preferred nodes, the node with the fewest free resources is chosen.
    """
    free = [dict(node) for node in nodes]
    chosen: list[int | None] = [None] * len(bundles)
    for index in sorted(range(len(bundles)), key=lambda i: [-bundles[i].get(kind, 0.0) for kind in ("GPU", "CPU")]):
        bundle = bundles[index]
        fitting = [i for i, node in enumerate(free) if has_resources(node, bundle)]
        if fitting:
            left = {i: [free[i].get(kind, 0.0) for kind in ("GPU", "CPU")] for i in fitting}
            best = min(fitting, key=lambda i: (i not in chosen, left[i], i))
            for kind, amount in bundle.items():
                free[best][kind] -= amount
            chosen[index] = best
    return chosen


def total_resources(placement: Placement) -> tuple[float, float]:
    """Return the total numbers of GPUs and of cores of a placement."""
    bundles = placement.bundles
    return sum(bundle.get("GPU", 0.0) for bundle in bundles), sum(bundle["CPU"] for bundle in bundles)


def has_resources(node: Mapping[str, float], bundle: Bundle) -> bool:
    return all(node.get(kind, 0.0) >= amount for kind, amount in bundle.items())


# -- formatting --------------------------------------------------------------------------------------------------------


def bundle_name(placement: Placement, index: int) -> str:
    """Return a bundle's name, such as `engine 1` or `learner rank 0`.

    If engines and ranks share bundles, the names are like `bundle 0 (engine and learner)`.
    """
    if placement.colocated:
        return f"bundle {index} (engine and learner)"
    if index < placement.engines:
        return f"engine {index}"
    return f"learner rank {index - placement.engines}"


def format_resources(resources: Mapping[str, float]) -> str:
    """Return resources as text, such as `2 cores, 1 GPUs`."""
    return ", ".join(f"{resources.get(kind, 0.0):g} {name}" for kind, name in KINDS.items())


def format_bytes(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.0f} MiB"


SPILL_SHARE = 0.8
"""Fill level of an object store above which Ray spills to disk: Ray's default of `object_spilling_threshold`."""
STORE_BYTES = 128 * 2**20
"""Bytes in each object store for objects other than weights."""
BUCKETS_ON_THEIR_WAY = 2
"""Weight buckets in the object store per engine: the bucket that the engine is copying, and the next bucket."""
TMP_BYTES = 3 * GIB
"""Estimated space for Ray's logs and compiler caches; not measured."""
MANY_GPUS_SHM_BYTES = 256 << 20
"""Minimum size of /dev/shm for an engine on several GPUs; vLLM does not start with less."""


@dataclass(frozen=True, slots=True)
class RequiredNodeSizes:
    """Sizes in bytes that a node needs for Ray's object store, /dev/shm and /tmp.

    `held_bytes` is the memory that the objects in the node's object store take.
    """

    store_bytes: int
    shm_bytes: int
    tmp_bytes: int
    held_bytes: int


def estimate_node_sizes(
    placement: Placement,
    nodes: Sequence[Node],
    assignments: Sequence[NodeAssignment],
    model: ModelShape | None,
    lora: LoraSpec | None = None,
) -> tuple[RequiredNodeSizes, ...]:
    """Return the required sizes of each node; without a `model`, weights are not counted."""
    engines = [0] * len(nodes)
    source = None
    for place in assignments:
        if place.node is not None and place.role == "engine":
            engines[nodes.index(place.node)] += 1
        elif place.node is not None and place.index == 0:
            source = nodes.index(place.node)
    travels = model is not None and placement.learner_ranks > 0 and placement.engines > 0
    version = model.count_trained(lora) * placement.bytes_per_weight if model is not None and travels else 0
    largest = model.largest_parameter * placement.bytes_per_weight if model is not None else 0
    bucket = min(version, max(MAX_BUCKET_BYTES, largest))
    return tuple(
        _estimate_node_sizes(node, version, bucket, count, i == source, placement.engine_gpus > 1)
        for i, (node, count) in enumerate(zip(nodes, engines, strict=True))
    )


def _estimate_node_sizes(
    node: Node, version: int, bucket: int, engines: int, is_source: bool, many_gpus: bool
) -> RequiredNodeSizes:
    on_their_way = 0 if is_source else engines * BUCKETS_ON_THEIR_WAY * bucket
    store = STORE_BYTES + (math.ceil(version / SPILL_SHARE) if is_source else on_their_way)
    own = store if node.object_store_bytes is None else node.object_store_bytes
    # Buckets that were read stay in the store until it is full or the next version arrives.
    held = min(own, STORE_BYTES + version) if is_source or engines else 0
    shm = max(own, store) + engines * version + (MANY_GPUS_SHM_BYTES if engines and many_gpus else 0)
    spilled = max(0, STORE_BYTES + version - int(own * SPILL_SHARE)) if is_source and own < store else 0
    return RequiredNodeSizes(store, shm, TMP_BYTES + spilled, held)


def size_warnings(nodes: Sequence[Node], sizes: Sequence[RequiredNodeSizes]) -> Iterator[Problem]:
    """Yield a warning for each object store, /dev/shm and /tmp that is too small. Ignores unknown sizes."""
    for node, needed in zip(nodes, sizes, strict=True):
        store, shm, tmp = node.object_store_bytes, node.shm_bytes, node.tmp_bytes
        if store is not None and store < needed.store_bytes:
            message = f"Ray's object store on {node.name} has {format_bytes(store)} of memory"
            needs = f"but the weights need {format_bytes_up(needed.store_bytes)}, so Ray will write weights to /tmp"
            fix = f"start Ray on that node with --object-store-memory={needed.store_bytes}"
            yield Problem("small_object_store", "cluster", f"{message}, {needs}", fix)
        if shm is not None and shm < needed.shm_bytes:
            message = (
                f"/dev/shm on {node.name} has {format_bytes(shm)}, but the object store and the weights need "
                f"{format_bytes_up(needed.shm_bytes)}"
            )
            yield Problem(
                "small_shared_memory", "cluster", message, f"enlarge /dev/shm to {format_bytes_up(needed.shm_bytes)}"
            )
        if tmp is not None and tmp < needed.tmp_bytes:
            message = (
                f"/tmp on {node.name} has {format_bytes(tmp)}, but the job may need {format_bytes_up(needed.tmp_bytes)}"
            )
            yield Problem("small_tmp", "cluster", message, "enlarge /tmp, or give Ray a larger object store")


def format_bytes_up(num_bytes: int) -> str:
    """Return a required size as text, rounded up to GiB, or to MiB below 1 GiB."""
    return f"{math.ceil(num_bytes / 2**20)} MiB" if num_bytes < GIB else f"{math.ceil(num_bytes / GIB)} GiB"
