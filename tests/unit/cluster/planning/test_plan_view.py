"""`agent-rft plan`: its tables and its JSON, without endpoints, environment variables or a cluster."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from cluster.planning.model_folder import read_folder
from cluster.planning.nodes import Node
from cluster.planning.plan_view import plan_as_json, plan_of_file, print_cluster_plan
from cluster.planning.units import GIB
from tests.support.paths import LEDGER
from trainer.errors import InvalidJob

TWO = [Node("head", cores=1, memory_bytes=8 * GIB), Node("worker", cores=1, memory_bytes=8 * GIB)]


def test_the_examples_job_fits_on_two_small_nodes() -> None:
    plan = plan_of_file(LEDGER / "job.yaml", TWO)
    found = json.loads(json.dumps(plan_as_json(plan)))
    assert found["fits"]
    assert {place["role"]: place["node"] for place in found["places"]} == {"engine": "head", "learner rank": "worker"}
    engine, rank = found["places"]
    assert engine["cached_sequences"] == 64 + 16
    assert engine["memory_bytes"]["cache"] == 80 * 2048 * 2 * 2 * 5 * 32 * 4
    assert engine["memory_bytes"]["weights"] == rank["memory_bytes"]["gradients"] == 4 * 560_608
    assert [node["taken_bytes"] < 4 * GIB for node in found["nodes"]] == [True, True]


def test_the_tables_show_what_does_not_fit() -> None:
    console = Console(record=True, width=120, file=io.StringIO())
    print_cluster_plan(console, plan_of_file(LEDGER / "job.yaml", TWO[:1]))
    text = console.export_text()
    assert "not placed" in text
    assert "the job needs 2 cores (engines 1 x 1, learner ranks 1 x 1), the cluster has 1 [too_few_resources]" in text
    assert "it fits" not in text


def test_a_job_with_mistakes_is_not_planned(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text((LEDGER / "job.yaml").read_text().replace("model: base", "modle: base"))
    with pytest.raises(InvalidJob, match="modle"):
        plan_of_file(path, TWO)


def test_parameters_are_counted_from_the_headers_of_the_weights() -> None:
    model, problems = read_folder(str(LEDGER / "base"))
    assert problems == []
    assert model is not None
    assert (model.shape.num_parameters, model.shape.vocabulary, model.shape.query) == (560_608, 298, 160)
