"""The placement of engines and learner ranks on nodes: computed before anything starts.

Each engine, however many GPUs it has, and each learner rank is one bundle of resources that a single node must hold.
`Seats` (cluster/ray_cluster/seats.py) asks Ray for the same bundles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from agent_rft.actors.engine.sizes import GPU_MEMORY_SHARE
from agent_rft.cluster.planning.memory import GIB, Memory
from agent_rft.cluster.planning.model import ModelShape
from agent_rft.cluster.planning.nodes import Node
from agent_rft.errors import Problem
from agent_rft.spec.endpoints import Positive, Processes, ToolSpec
from agent_rft.spec.job import JobSpec
from agent_rft.spec.model_options import LoraSpec
from agent_rft.spec.offload import Offload
from agent_rft.trainer.learner.layout import MAX_BUCKET_BYTES

KINDS = {"CPU": "cores", "GPU": "GPUs"}

Bundle = dict[str, float]
Role = Literal["engine", "learner rank"]
Settings = Mapping[str, Any]
"""Values by their path in a job, such as `cluster.zero_stage`."""

AUTO_MICRO_BATCH_TOKENS, MICRO_BATCH_STEP = 8192, 1024
CALLS_PER_DISPATCHER = 1024
"""Concurrent tool calls for which a job has one dispatcher.

A dispatcher serves 2,400 calls per second, one per turn, with 500 in flight (`benchmarks.dispatcher`, "around actor",
on two cores that it shares with its caller and the server). The rule assumes that a turn of the model and its calls
take at least half a second, which was not measured: 1,024 rollouts then have at most 2,048 turns per second. Fewer
calls stay in one dispatcher, because several dispatchers split the limits of each tool."""


@dataclass(frozen=True, slots=True)
class RecordedLayout:
    """Values of `cluster` that a run began with. A resumed run keeps those of `auto` while they fit. None: no value."""

    micro_batch_tokens: Positive | None = None
    engines: Processes | None = None
    engine_cores: Processes | None = None
    engine_gpus: int | None = None
    learner_ranks: Processes | None = None
    rank_cores: Processes | None = None
    zero_stage: int | None = None
    offload: Offload | None = None
    max_num_seqs: Positive | None = None

    @classmethod
    def of(cls, placement: Placement) -> RecordedLayout:
        """Return the values to record: none of a run that only grades, and no engines of a supervised job."""
        if not placement.learner_ranks:
            return cls()
        values = {name: getattr(placement, name) for name in RECORDED}
        return cls(**values | {"engines": placement.engines or None})


RECORDED = tuple(field.name for field in fields(RecordedLayout))


@dataclass(frozen=True, slots=True)
class Request:
    """A job to lay out on nodes.

    Without a `model`, memory is not checked. Without `learner`, the run only grades. `recorded` is the layout of the
    run that is resumed. `adapter` is the shape of the adapter that the model is; None: all its weights are in its
    folder. `has_adapters` says whether adapters of the model can be trained and sampled. `max_gpus` limits the GPUs
    that are chosen; None: no limit.
    """

    job: JobSpec
    nodes: tuple[Node, ...]
    model: ModelShape | None
    context_length: int
    learner: bool = True
    recorded: RecordedLayout = RecordedLayout()
    adapter: LoraSpec | None = None
    has_adapters: bool = True
    max_gpus: int | None = None

    def with_settings(self, settings: Settings) -> Request:
        job = self.job
        for path, value in settings.items():
            job = _changed(job, path.split("."), value)
        context = settings.get("cluster.context_length", self.context_length)
        return replace(self, job=job, context_length=context)


Model = TypeVar("Model", bound=BaseModel)


def _changed(model: Model, path: Sequence[str], value: Any) -> Model:
    name, *rest = path
    return model.model_copy(update={name: _changed(getattr(model, name), rest, value) if rest else value})


@dataclass(frozen=True, slots=True)
class Placement:
    """Settings of `cluster` with every `auto` resolved: resources and limits of each engine and each learner rank.

    Engines and ranks that are `colocated` share bundles. On cores they take `turns`. On GPUs they also take turns, or
    each has a part of the memory all the time; `gpu_share` is the part of a GPU that an engine takes while it samples.
    Engines that are `shared` with other jobs count as the job's engines, but the job does not reserve them. `lora` is
    the adapter to train, None for all weights.
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
    turns: bool = False
    gpu_share: float = GPU_MEMORY_SHARE
    shared: bool = False

    @property
    def shares_gpus(self) -> bool:
        return self.colocated and self.rank_gpus > 0

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

    def without_learner(self) -> Placement:
        """The same engines, each with its cores or GPUs to itself."""
        return replace(self, learner_ranks=0, colocated=False, turns=False, gpu_share=GPU_MEMORY_SHARE, shared=False)

    @property
    def reserved(self) -> range:
        """The bundles that the job itself asks for."""
        return range(self.engines if self.shared else 0, len(self.bundles))

    def bundle_of_engine(self, index: int) -> int:
        return index

    def bundle_of_rank(self, index: int) -> int:
        return index // self._ranks_together if self.colocated else self.engines + index

    @property
    def _ranks_together(self) -> int:
        """Ranks in a shared bundle: one for each GPU of an engine."""
        return max(1, self.engine_gpus)


def num_dispatchers(tools: Sequence[ToolSpec], placement: Placement) -> int:
    """Return how many dispatchers a job has: one for every CALLS_PER_DISPATCHER concurrent calls, rounded up.

    Concurrent calls are bounded by the sequences that all engines decode at a time, and by the sum of the tools'
    `max_concurrency`.
    """
    sequences = placement.engines * placement.max_num_seqs
    calls = min(sequences, sum(tool.max_concurrency for tool in tools))
    return max(1, math.ceil(calls / CALLS_PER_DISPATCHER))


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


def micro_batch_sizes(request: Request) -> list[int]:
    """Return the sizes of micro-batches in tokens that the job may use, the largest first.

    A number in the job is the only size. The sizes of `auto` are 8,192 or the context length, whichever is larger, then
    the smaller multiples of 1,024 that hold the context length, then the context length itself. Less would save no
    memory, because a sequence is never divided. A resumed run begins with its recorded size if that holds the context.
    """
    setting, longest = request.job.cluster.micro_batch_tokens, request.context_length
    if setting != "auto":
        return [setting]
    sizes = [*range(AUTO_MICRO_BATCH_TOKENS, longest, -MICRO_BATCH_STEP), longest]
    recorded = request.recorded.micro_batch_tokens
    if recorded is None or recorded < longest:
        return sizes
    return [recorded, *(size for size in sizes if size < recorded)]


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


def size_of(placement: Placement) -> tuple[float, float]:
    """Its GPUs and cores."""
    bundles = placement.bundles
    return sum(bundle.get("GPU", 0.0) for bundle in bundles), sum(bundle["CPU"] for bundle in bundles)


def holds(node: Mapping[str, float], bundle: Bundle) -> bool:
    return all(node.get(kind, 0.0) >= amount for kind, amount in bundle.items())


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


SPILL_SHARE = 0.8
"""Ray's default of `object_spilling_threshold`."""
STORE_BYTES = 128 * 2**20
"""Room in each object store for what else is in it."""
BUCKETS_ON_THEIR_WAY = 2
"""One that an engine copies, and the next one."""
TMP_BYTES = 3 * GIB
"""An allowance for Ray's logs and for caches of compilers; not measured."""
MANY_GPUS_SHM_BYTES = 256 << 20
"""vLLM does not start an engine on several GPUs with less than this in /dev/shm."""


@dataclass(frozen=True, slots=True)
class NodeSizes:
    """The bytes that a node needs. `held_bytes` is what its store keeps in memory, of `store_bytes` or its own size."""

    store_bytes: int
    shm_bytes: int
    tmp_bytes: int
    held_bytes: int


def node_sizes(
    placement: Placement,
    nodes: Sequence[Node],
    assignments: Sequence[Assignment],
    model: ModelShape | None,
    lora: LoraSpec | None = None,
) -> tuple[NodeSizes, ...]:
    """The sizes of each node; without a `model` those of a job without weights."""
    engines = [0] * len(nodes)
    source = None
    for place in assignments:
        if place.node is not None and place.role == "engine":
            engines[nodes.index(place.node)] += 1
        elif place.node is not None and place.index == 0:
            source = nodes.index(place.node)
    travels = model is not None and placement.learner_ranks > 0 and placement.engines > 0
    version = model.trained(lora) * placement.bytes_per_weight if model is not None and travels else 0
    largest = model.largest_parameter * placement.bytes_per_weight if model is not None else 0
    bucket = min(version, max(MAX_BUCKET_BYTES, largest))
    return tuple(
        _sizes(node, version, bucket, count, i == source, placement.engine_gpus > 1)
        for i, (node, count) in enumerate(zip(nodes, engines, strict=True))
    )


def _sizes(node: Node, version: int, bucket: int, engines: int, is_source: bool, many_gpus: bool) -> NodeSizes:
    on_their_way = 0 if is_source else engines * BUCKETS_ON_THEIR_WAY * bucket
    store = STORE_BYTES + (math.ceil(version / SPILL_SHARE) if is_source else on_their_way)
    own = store if node.object_store_bytes is None else node.object_store_bytes
    # Buckets that were read stay until there is no room, or until the next version.
    held = min(own, STORE_BYTES + version) if is_source or engines else 0
    shm = max(own, store) + engines * version + (MANY_GPUS_SHM_BYTES if engines and many_gpus else 0)
    spilled = max(0, STORE_BYTES + version - int(own * SPILL_SHARE)) if is_source and own < store else 0
    return NodeSizes(store, shm, TMP_BYTES + spilled, held)


def size_warnings(nodes: Sequence[Node], sizes: Sequence[NodeSizes]) -> Iterator[Problem]:
    """A warning for each size that a node is known to lack."""
    for node, needed in zip(nodes, sizes, strict=True):
        store, shm, tmp = node.object_store_bytes, node.shm_bytes, node.tmp_bytes
        if store is not None and store < needed.store_bytes:
            message = f"Ray's object store on {node.name} has {size(store)}"
            needs = f"the weights need {at_least(needed.store_bytes)}, else Ray writes them to /tmp"
            remedy = f"start Ray there with --object-store-memory={needed.store_bytes}"
            yield Problem("small_object_store", "cluster", f"{message}, {needs}", remedy)
        if shm is not None and shm < needed.shm_bytes:
            message = (
                f"/dev/shm on {node.name} has {size(shm)}, object store and weights need {at_least(needed.shm_bytes)}"
            )
            yield Problem("no_shared_memory", "cluster", message, f"enlarge it to {at_least(needed.shm_bytes)}")
        if tmp is not None and tmp < needed.tmp_bytes:
            message = f"/tmp on {node.name} has {size(tmp)}, {at_least(needed.tmp_bytes)} may be needed"
            yield Problem("small_tmp", "cluster", message, "enlarge it, or give Ray a larger object store")


def at_least(num_bytes: int) -> str:
    """A size to give to something, so rounded up: in GiB, or below one in MiB."""
    return f"{math.ceil(num_bytes / 2**20)} MiB" if num_bytes < GIB else f"{math.ceil(num_bytes / GIB)} GiB"
