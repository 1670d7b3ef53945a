"""Nodes that a plan may use, read from a NODES.yaml or from this computer.

The module `ray_cluster.live_nodes` reads the nodes of a live cluster.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from agent_rft.actors.runtime.cpu_cores import CGROUPS, count_usable_cores
from agent_rft.cluster.planning.memory_estimates import GIB
from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.config_reader import drop_missing_variable_problems, read_source, substitute_variables, validate
from agent_rft.spec.node_groups import NodeGroup, NodesFile

ASK_TIMEOUT_S = 30.0
HEADROOM = 0.08
"""Share of memory that a plan leaves free: devices have less than their nominal memory, and estimates may be low."""
MEMORY_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""Files with a container's memory limit, for versions 2 and 1 of Linux control groups."""


@dataclass(frozen=True, slots=True)
class Node:
    """Resources of one node, as Ray counts them.

    `gpus` and `cores` include `held_gpus` and `held_cores`, which other jobs currently hold. `gpu_memory_bytes` is the
    memory of each GPU. `object_store_bytes` is the size of Ray's object store, `shm_bytes` the size of /dev/shm, and
    `tmp_bytes` the size of /tmp. A size of None is unknown.
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
    held_cores: float = 0.0

    def with_free_resources(self) -> Node:
        """Return a copy of the node with only its free GPUs and cores. `held_gpus` and `held_cores` do not change."""
        return replace(self, gpus=self.gpus - self.held_gpus, cores=self.cores - self.held_cores)

    @property
    def usable_bytes(self) -> int | None:
        return _without_headroom(self.memory_bytes)

    @property
    def usable_gpu_bytes(self) -> int | None:
        return _without_headroom(self.gpu_memory_bytes)

    @property
    def resources(self) -> dict[str, float]:
        """Numbers of cores and GPUs, by Ray's resource names."""
        return {"CPU": self.cores, "GPU": self.gpus}


def _without_headroom(num_bytes: int | None) -> int | None:
    return None if num_bytes is None else round(num_bytes * (1 - HEADROOM))


# -- from a file -------------------------------------------------------------------------------------------------------


def read_nodes(path: Path) -> list[Node]:
    """Read nodes from a YAML file `nodes: [{name, count, cores, gpus, memory_gib, ...}]` (see `NodesFile`).

    Raises:
        InvalidJob: The file is missing or has errors; lists all of them.
    """
    source = read_source(path, "nodes")
    if isinstance(source, Problem):
        raise InvalidJob("the list of nodes cannot be read", [source])
    raw, variables, problems = substitute_variables(source, os.environ)
    found, wrong = validate(NodesFile, raw, source, variables)
    problems += source.find_duplicates() + drop_missing_variable_problems(wrong, variables)
    if found is None or problems:
        raise InvalidJob("the list of nodes has errors", problems)
    return expand_nodes(found.nodes)


def expand_nodes(groups: Iterable[NodeGroup]) -> list[Node]:
    """Return a `Node` for each node of the groups; a group describes `count` identical nodes."""
    return [
        Node(
            name=name,
            cores=group.cores,
            gpus=group.gpus,
            memory_bytes=_gib_to_bytes(group.memory_gib),
            gpu_memory_bytes=_gib_to_bytes(group.gpu_memory_gib),
            object_store_bytes=_gib_to_bytes(group.object_store_gib),
            shm_bytes=_gib_to_bytes(group.shm_gib),
            tmp_bytes=_gib_to_bytes(group.tmp_gib),
        )
        for group in groups
        for name in group.node_names
    ]


def add_joining_nodes(live: Sequence[Node], groups: Iterable[NodeGroup]) -> list[Node]:
    """Return the live nodes, then the nodes of `groups` that have not joined yet.

    A live node counts as a node of `groups` if it has the same number of cores and GPUs.
    """
    joining = expand_nodes(groups)
    for node in live:
        same = (other for other in joining if (other.cores, other.gpus) == (node.cores, node.gpus))
        if (joined := next(same, None)) is not None:
            joining.remove(joined)
    return [*live, *joining]


def _gib_to_bytes(gib: float | None) -> int | None:
    return None if gib is None else round(gib * GIB)


# -- as they are -------------------------------------------------------------------------------------------------------


def read_local_node() -> Node:
    """Return the node that a local Ray cluster would have, without starting one."""
    gpu_memory = read_gpu_memory()
    return Node(
        "this machine", float(count_usable_cores()), len(gpu_memory), read_local_memory(), min(gpu_memory, default=None)
    )


def read_local_memory(cgroup: Path = CGROUPS) -> int:
    """Return this computer's memory in bytes, or this container's memory limit if that is lower. Ray does the same."""
    limits = [psutil.virtual_memory().total]
    for file in MEMORY_LIMITS:
        with suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int((cgroup / file).read_text()))
    return min(limits)


def read_gpu_memory() -> list[int]:
    """Return the memory in bytes of each GPU of this computer."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):  # no NVIDIA driver here
        return []
    return [int(line) << 20 for line in output.split() if line.isdecimal()]
