"""The machines that a plan may use: those of a NODES.yaml, or this one. Those of a live cluster: ray_cluster."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import Field, field_validator

from actors.runtime.cores import CGROUPS, usable_cores
from cluster.planning.units import GIB
from trainer.errors import InvalidJob, Problem
from trainer.spec.endpoints import Strict
from trainer.spec.reader import fill_in, read_source, validate, without_consequences

ASK_TIMEOUT_S = 30.0
HEADROOM = 0.08
"""Share of all memory that a plan leaves free: devices report less than their name says, and estimates may be low."""
MAX_NODES = 10_000
MEMORY_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""A container's memory limit in version 2 and in version 1 of Linux control groups."""

GibiBytes = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, slots=True)
class Node:
    """What one machine offers to Ray. `gpu_memory_bytes` is that of each GPU; None: unknown.

    `held_gpus` are GPUs that other jobs hold now; `gpus` includes them.
    `object_store_bytes` is the size of Ray's object store, `shm_bytes` of /dev/shm, `tmp_bytes` of /tmp.
    """

    name: str
    cores: float
    gpus: float = 0.0
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    object_store_bytes: int | None = None
    shm_bytes: int | None = None
    tmp_bytes: int | None = None
    held_gpus: float = 0.0

    def without_held(self) -> Node:
        """The node without the GPUs that others hold, which it still counts in `held_gpus`."""
        return replace(self, gpus=self.gpus - self.held_gpus)

    @property
    def usable_bytes(self) -> int | None:
        return _without_headroom(self.memory_bytes)

    @property
    def usable_gpu_bytes(self) -> int | None:
        return _without_headroom(self.gpu_memory_bytes)

    @property
    def resources(self) -> dict[str, float]:
        """Cores and GPUs by Ray's names."""
        return {"CPU": self.cores, "GPU": self.gpus}


def _without_headroom(num_bytes: int | None) -> int | None:
    return None if num_bytes is None else round(num_bytes * (1 - HEADROOM))


# -- from a file -------------------------------------------------------------------------------------------------------


class NodeGroup(Strict):
    """Equal machines."""

    name: str
    """Name of the node in the plan; nodes of a group of several are numbered: `gpu-0`, `gpu-1`."""
    count: Annotated[int, Field(ge=1, le=MAX_NODES)] = 1
    """How many nodes like this there are."""
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
    """Size of `/dev/shm` of each node in GiB; null: unknown, and not checked."""
    tmp_gib: GibiBytes | None = None
    """Size of `/tmp` of each node in GiB, such as the limit of a pod's `emptyDir`; null: unknown, and not checked."""

    def nodes(self) -> list[Node]:
        names = [self.name] if self.count == 1 else [f"{self.name}-{i}" for i in range(self.count)]
        node = Node(
            name="",
            cores=self.cores,
            gpus=self.gpus,
            memory_bytes=_bytes(self.memory_gib),
            gpu_memory_bytes=_bytes(self.gpu_memory_gib),
            object_store_bytes=_bytes(self.object_store_gib),
            shm_bytes=_bytes(self.shm_gib),
            tmp_bytes=_bytes(self.tmp_gib),
        )
        return [replace(node, name=name) for name in names]


class NodesFile(Strict):
    """The nodes of a planned cluster, for `agent-rft plan --cluster`."""

    nodes: Annotated[tuple[NodeGroup, ...], Field(min_length=1)]
    """The nodes of the cluster, in groups of equal ones."""

    @field_validator("nodes")
    @classmethod
    def _names_are_unique(cls, nodes: tuple[NodeGroup, ...]) -> tuple[NodeGroup, ...]:
        if (count := sum(group.count for group in nodes)) > MAX_NODES:
            raise ValueError(f"there are {count:,} nodes; use at most {MAX_NODES:,}")
        names = Counter(node.name for group in nodes for node in group.nodes())
        if duplicated := sorted(name for name, times in names.items() if times > 1):
            raise ValueError(f"the names {duplicated} are duplicated; give each node its own name")
        return nodes


def read_nodes(path: Path) -> list[Node]:
    """The nodes of a file `nodes: [{name, count, cores, gpus, memory_gib, ...}]`, as in NodesFile.

    Raises:
        InvalidJob: the file has mistakes; lists all of them.
    """
    source = read_source(path, "nodes")
    if isinstance(source, Problem):
        raise InvalidJob("there are no nodes to plan for", [source])
    raw, variables, problems = fill_in(source, os.environ)
    found, wrong = validate(NodesFile, raw, source, variables)
    problems += source.duplicates() + without_consequences(wrong, variables)
    if found is None or problems:
        raise InvalidJob("the list of nodes has mistakes", problems)
    return [node for group in found.nodes for node in group.nodes()]


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else round(gib * GIB)


# -- as they are -------------------------------------------------------------------------------------------------------


def this_machine() -> Node:
    """The node that a local Ray cluster would have; none is started."""
    gpu_memory = gpu_memories()
    return Node("this machine", float(usable_cores()), len(gpu_memory), memory_here(), min(gpu_memory, default=None))


def memory_here(cgroup: Path = CGROUPS) -> int:
    """Bytes of memory of this machine, or the limit of the container that we run in, as Ray counts it."""
    limits = [psutil.virtual_memory().total]
    for file in MEMORY_LIMITS:
        with suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int((cgroup / file).read_text()))
    return min(limits)


def gpu_memories() -> list[int]:
    """Bytes of memory of each GPU of this machine."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):  # no NVIDIA driver here
        return []
    return [int(line) << 20 for line in output.split() if line.isdecimal()]
