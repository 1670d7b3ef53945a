"""Live nodes of the cluster that this process is connected to."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agent_rft.cluster.planning.plan_nodes import ASK_TIMEOUT_S, Node, read_gpu_memory, read_local_memory
from agent_rft.cluster.ray_cluster.ray_internals import free_resources

HEAD = "node:__internal_head__"


def read_live_nodes() -> list[Node]:
    """Return the nodes of the connected cluster, head first.

    Queries each node with GPUs for the memory of its GPUs, which Ray does not report. Call this before resources are
    reserved for the job, because all reserved resources count as held by other jobs.
    """
    return LiveNodeReader()()


class LiveNodeReader:
    """Callable that returns the cluster's live nodes. It caches each node's GPU memory."""

    def __init__(self) -> None:
        self._gpu_memory: dict[str, int | None] = {}

    def __call__(self) -> list[Node]:
        alive = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: HEAD not in node["Resources"])
        with_gpus = [node["NodeID"] for node in alive if node["Resources"].get("GPU")]
        asked = {name: _query_gpu_memory(name) for name in with_gpus if name not in self._gpu_memory}
        self._gpu_memory |= {name: _get_gpu_memory(ref) for name, ref in asked.items()}
        free = free_resources()
        return [_to_node(node, self._gpu_memory.get(node["NodeID"]), free.get(node["NodeID"], {})) for node in alive]


def _to_node(node: Mapping[str, Any], gpu_memory: int | None, available: Mapping[str, float]) -> Node:
    resources, host = node["Resources"], node["NodeManagerHostname"]
    # For other nodes, Ray reports only the memory that was free when it started there.
    store = resources.get("object_store_memory", 0.0)
    free = resources.get("memory", 0.0) + store
    return Node(
        name=f"{host}-{node['NodeID'][:4]}",
        cores=resources.get("CPU", 0.0),
        gpus=resources.get("GPU", 0.0),
        memory_bytes=read_local_memory() if host == socket.gethostname() else int(free) or None,
        gpu_memory_bytes=gpu_memory,
        object_store_bytes=int(store) or None,
        held_gpus=resources.get("GPU", 0.0) - available.get("GPU", 0.0),
        held_cores=resources.get("CPU", 0.0) - available.get("CPU", 0.0),
    )


def _query_gpu_memory(node_id: str) -> Any:
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    # A separate process (max_calls=1): one reused for an actor must not have queried GPUs before it gets its own.
    return ray.remote(num_cpus=0, max_calls=1)(read_gpu_memory).options(scheduling_strategy=there).remote()


def _get_gpu_memory(ref: Any) -> int | None:
    try:
        return min(ray.get(ref, timeout=ASK_TIMEOUT_S), default=None)
    except RayError:  # the node died, or is too busy to respond
        return None
