"""Lists of nodes: the nodes of a planned cluster, or all nodes that an operator's cluster can have."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from pydantic import AfterValidator, Field

from agent_rft.spec.endpoints import StrictModel

MAX_NODES = 10_000

GibiBytes = Annotated[float, Field(gt=0)]


class NodeGroup(StrictModel):
    """A group of identical nodes."""

    name: str
    """Name of the node in the plan; if the group has several nodes, they are numbered: `gpu-0`, `gpu-1`."""
    count: Annotated[int, Field(ge=1, le=MAX_NODES)] = 1
    """Number of nodes in the group."""
    cores: Annotated[float, Field(ge=0)]
    """CPU cores that each node offers to Ray."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs of each node."""
    memory_gib: GibiBytes | None = None
    """Memory of each node in GiB; null: unknown, and not checked."""
    gpu_memory_gib: GibiBytes | None = None
    """Memory of each GPU in GiB; null: unknown, and not checked."""
    object_store_gib: GibiBytes | None = None
    """Size of Ray's object store on each node in GiB (`--object-store-memory`); null: unknown, and not checked."""
    shm_gib: GibiBytes | None = None
    """Size of `/dev/shm` on each node in GiB; null: unknown, and not checked."""
    tmp_gib: GibiBytes | None = None
    """Size of `/tmp` on each node in GiB, such as the limit of a pod's `emptyDir`; null: unknown, and not checked."""

    @property
    def node_names(self) -> list[str]:
        """Names of all nodes of the group."""
        return [self.name] if self.count == 1 else [f"{self.name}-{i}" for i in range(self.count)]


def _check_names(nodes: tuple[NodeGroup, ...]) -> tuple[NodeGroup, ...]:
    if (count := sum(group.count for group in nodes)) > MAX_NODES:
        raise ValueError(f"there are {count:,} nodes; use at most {MAX_NODES:,}")
    names = Counter(name for group in nodes for name in group.node_names)
    if duplicated := sorted(name for name, times in names.items() if times > 1):
        raise ValueError(f"the names {duplicated} are duplicated; give each node a unique name")
    return nodes


NodeGroups = Annotated[tuple[NodeGroup, ...], AfterValidator(_check_names)]
"""Groups of identical nodes; every node name is unique."""


class NodesFile(StrictModel):
    """The nodes of a planned cluster, for `agent-rft plan --cluster`."""

    nodes: Annotated[tuple[NodeGroup, ...], Field(min_length=1), AfterValidator(_check_names)]
    """Nodes of the cluster, in groups of identical nodes."""
