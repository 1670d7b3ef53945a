"""NODES.yaml and this machine as nodes of a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent_rft.cluster.planning.memory_estimates import GIB
from agent_rft.cluster.planning.plan_nodes import (
    Node,
    add_joining_nodes,
    expand_nodes,
    read_local_memory,
    read_local_node,
    read_nodes,
)
from agent_rft.errors import InvalidJob
from agent_rft.spec.node_groups import NodeGroup


def write(folder: Path, text: str) -> Path:
    path = folder / "nodes.yaml"
    path.write_text(text)
    return path


def test_a_group_expands_into_equal_machines(tmp_path: Path) -> None:
    text = """
nodes:
  - {name: head, cores: 2, memory_gib: 8}
  - {name: gpu, count: 2, cores: 32, gpus: 8, memory_gib: 512, gpu_memory_gib: 80}
"""
    large = Node("gpu-0", 32, 8, 512 * GIB, 80 * GIB)
    assert read_nodes(write(tmp_path, text)) == [
        Node("head", 2, 0, 8 * GIB, None),
        large,
        Node("gpu-1", *(large.cores, large.gpus, large.memory_bytes, large.gpu_memory_bytes)),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: []", "nodes"),
        ("nodes: [{name: a}]", r"nodes\[0\].cores"),
        ("nodes: [{name: a, cores: 1, gpu: 2}]", r"nodes\[0\].gpu"),
        ("nodes: [{name: a, cores: 1}, {name: a, cores: 2}]", "are duplicated"),
        ("nodes: [", "cannot be parsed"),
        ("- a", "nodes"),
    ],
)
def test_mistakes_name_their_field(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        read_nodes(write(tmp_path, text))


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="cannot be read"):
        read_nodes(tmp_path / "nowhere.yaml")


def test_nodes_that_join_on_demand_come_after_those_that_have_joined() -> None:
    groups = NodeGroup(name="head", cores=0), NodeGroup(name="gpu", count=3, cores=32, gpus=8, gpu_memory_gib=80)
    head, *gpus = expand_nodes(groups)
    joined, other = replace(gpus[0], name="joined", held_gpus=8.0), Node("other", cores=4)
    assert add_joining_nodes([replace(head, name="h")], groups) == [replace(head, name="h"), *gpus]
    assert add_joining_nodes([head, other, joined], groups) == [head, other, joined, *gpus[1:]]
    assert add_joining_nodes([joined] * 4, groups) == [*[joined] * 4, head]


def test_this_machine_has_cores_and_memory() -> None:
    machine = read_local_node()
    assert machine.cores >= 1
    assert machine.memory_bytes is not None
    assert machine.memory_bytes > GIB


@pytest.mark.parametrize("file", ["memory.max", "memory/memory.limit_in_bytes"])
def test_the_memory_of_a_container_is_its_limit(tmp_path: Path, file: str) -> None:
    machine = read_local_memory(tmp_path)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    for limit, memory in [("67108864", 64 << 20), ("max", machine), (str(2**63 - 4096), machine)]:
        (tmp_path / file).write_text(f"{limit}\n")
        assert read_local_memory(tmp_path) == memory
