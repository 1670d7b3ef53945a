"""What a node must offer beside memory: Ray's object store, shared memory and /tmp, from the way that weights travel.

One version of the weights stays in the object store of rank 0's node (actors/weights/sync.py). Ray starts to spill
it to /tmp when it fills more than SPILL_SHARE of the store; in a pod that fills an emptyDir and the pod is evicted. A
node with engines only holds the buckets that are on their way, and in /dev/shm a whole version for each engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from actors.weights.layout import MAX_BUCKET_BYTES
from cluster.planning.model_shape import ModelShape
from cluster.planning.nodes import Node
from cluster.planning.placement import Assignment, Placement, size
from cluster.planning.units import GIB
from trainer.errors import Problem
from trainer.spec.lora import LoraSpec

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
    largest = model.vocabulary * model.hidden * placement.bytes_per_weight if model is not None else 0
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
