"""The table of docs/models.md is what `agent-rft plan` computes for the job and the nodes on that page."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.planning.layout import ClusterPlan
from cluster.planning.nodes import read_nodes
from cluster.planning.plan_view import plan_of_file
from cluster.planning.units import GIB
from serve.importing.models import OPEN_MODELS
from tests.docs.markdown import pages
from tests.support.paths import ROOT

PAGE = next(page for page in pages() if page.path == "docs/models.md")
FILES = {block.title: block.text for block in PAGE.blocks}
SHAPES = {  # hidden, intermediate, layers, heads, is the head the embedding: from the models' config.json
    "Qwen3-0.6B": (1024, 3072, 28, 16, True),
    "Qwen3-1.7B": (2048, 6144, 28, 16, True),
    "Qwen3-4B": (2560, 9728, 36, 32, True),
    "Qwen3-8B": (4096, 12288, 36, 32, False),
    "Qwen3-14B": (5120, 17408, 40, 40, False),
    "Qwen3-32B": (5120, 25600, 64, 64, False),
}
KEY_VALUE_HEADS, HEAD_DIM, VOCABULARY = 8, 128, 151_936


def rows(begin: str = "Qwen3-") -> list[list[str]]:
    """The rows of the table whose first cells begin so."""
    lines = (ROOT / PAGE.path).read_text().splitlines()
    return [re.split(r"\s*\|\s*", line.strip("| ")) for line in lines if line.startswith(f"| {begin}")]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_is_what_the_plan_says(row: list[str], tmp_path: Path) -> None:
    name, _, engine_gpus, ranks, *_ = row
    num_parameters = write_model(tmp_path / "model", name)
    (tmp_path / "nodes.yaml").write_text(FILES["nodes.yaml"])

    def plan_with(num_ranks: int) -> tuple[bool, list[str]]:
        """Whether a plan fits, and its numbers."""
        job = yaml.safe_load(FILES["job.yaml"]) | {"model": str(tmp_path / "model")}
        job["cluster"] |= {"engine_gpus": int(engine_gpus), "learner_ranks": num_ranks}
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
        plan = plan_of_file(tmp_path / "job.yaml", read_nodes(tmp_path / "nodes.yaml"))
        engine, rank = plan.assignments[0].memory, plan.assignments[-1].memory
        assert engine is not None and rank is not None and engine.num_sequences is not None
        gib = [engine.gpu_bytes - engine.gpu["cache"], rank.gpu_bytes, sum(plan.host_bytes)]
        own, learner, nodes = (f"{num_bytes / GIB:.0f} GiB" for num_bytes in gib)
        return plan.fits, [own, f"{engine.num_sequences:.0f}", learner, nodes]

    assert plan_with(int(ranks)) == (True, row[4:])
    assert row[1] == f"{num_parameters / 1e9:.2g}B"
    if int(ranks) > 1:
        assert not plan_with(int(ranks) - 1)[0]


SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "`offload: optimizer`": ("cluster", {"offload": "optimizer"}),
    "`lora: {}`": ("algorithm", {"lora": {}}),
}


@pytest.mark.parametrize("row", [*rows("24 GiB"), *rows("80 GiB")], ids=lambda row: f"{row[0]} {row[1]}")
def test_a_row_of_one_gpu_is_what_the_plan_says(row: list[str], tmp_path: Path) -> None:
    gpu, name, setting, shared, sequences, memory = row
    write_model(tmp_path / "model", name)
    node = {"name": "gpu", "cores": 16, "gpus": 1, "memory_gib": 256, "gpu_memory_gib": int(gpu.split()[0])}
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump({"nodes": [node]}))

    def plan_with(setting: str) -> ClusterPlan:
        job = yaml.safe_load(FILES["job.yaml"]) | {"model": str(tmp_path / "model"), "cluster": {}}
        if (found := SETTINGS.get(setting)) is not None:
            (job if found[0] == "cluster" else job["method"]["reinforcement"])[found[0]] = found[1]
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
        return plan_of_file(tmp_path / "job.yaml", read_nodes(tmp_path / "nodes.yaml"))

    plan = plan_with(setting)
    engine = plan.assignments[0].memory
    assert plan.fits and engine is not None and engine.num_sequences is not None
    assert shared == ("in turns" if plan.placement.turns else "at once")
    assert sequences == f"{engine.num_sequences:.0f}"
    assert memory == f"{sum(plan.host_bytes) / GIB:.0f} GiB"
    assert setting == "none" or not plan_with("none").fits


def test_all_sizes_are_in_the_table() -> None:
    assert [row[0] for row in rows()] == list(SHAPES)


def test_an_import_proposes_from_the_table_of_the_page() -> None:
    table = [
        [model.name, f"{model.billions:.2g}B", f"{model.context:,}", model.tool_parser or "none", model.licence]
        for model in OPEN_MODELS
    ]
    assert table == rows("Qwen/")
    assert [row[:2] for row in rows()] == [[name.removeprefix("Qwen/"), size] for name, size, *_ in table]


def write_model(folder: Path, name: str) -> int:
    """Write a folder with this model's sizes, whose weights are a hole in a file; return its number of parameters."""
    hidden, intermediate, layers, heads, tied = SHAPES[name]
    config = {
        "model_type": "qwen3",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 40_960,
    }
    attention = 2 * hidden * HEAD_DIM * (heads + KEY_VALUE_HEADS) + 2 * HEAD_DIM
    layer = attention + 3 * hidden * intermediate + 2 * hidden
    num_parameters = VOCABULARY * hidden * (1 if tied else 2) + layers * layer + hidden
    tensors = {"all": {"dtype": "BF16", "shape": [num_parameters], "data_offsets": [0, 2 * num_parameters]}}
    header = json.dumps(tensors).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 2 * num_parameters)
    return num_parameters
