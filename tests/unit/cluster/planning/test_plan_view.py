"""`agent-rft plan`: its tables and its JSON, without endpoints, environment variables or a cluster."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from agent_rft.cluster.planning.cluster_plan import plan_cluster
from agent_rft.cluster.planning.memory_estimates import GIB
from agent_rft.cluster.planning.model_folder import ModelFolder, read_sizes
from agent_rft.cluster.planning.placement import STORE_BYTES
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.cluster.planning.plan_view import (
    plan_and_print,
    plan_to_json,
    print_cluster_plan,
    read_request,
)
from agent_rft.errors import InvalidJob
from tests.support.paths import LEDGER

TWO = [Node("head", cores=1, memory_bytes=8 * GIB), Node("worker", cores=1, memory_bytes=8 * GIB)]


def test_the_examples_job_fits_on_two_small_nodes() -> None:
    plan = plan_cluster(read_request(LEDGER / "job.yaml", TWO))
    found = json.loads(json.dumps(plan_to_json(plan)))
    assert found["fits"]
    assert {place["role"]: place["node"] for place in found["places"]} == {"engine": "head", "learner rank": "worker"}
    engine, rank = found["places"]
    assert engine["cached_sequences"] == 64 + 16
    assert engine["memory_bytes"]["cache"] == 80 * 2048 * 2 * 2 * 5 * 32 * 4
    assert engine["memory_bytes"]["weights"] == rank["memory_bytes"]["gradients"] == 4 * 560_608
    assert [node["used_bytes"] < 4 * GIB for node in found["nodes"]] == [True, True]


def test_the_tables_show_what_does_not_fit() -> None:
    console = Console(record=True, width=120, file=io.StringIO())
    print_cluster_plan(console, plan_cluster(read_request(LEDGER / "job.yaml", TWO[:1])))
    text = console.export_text()
    assert "not placed" in text
    assert (
        "the job needs 2 cores (engines 1 x 1, learner ranks 1 x 1), but the cluster has 1 [too_few_resources]" in text
    )
    assert "the job fits" not in text


def test_a_job_with_mistakes_is_not_planned(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text((LEDGER / "job.yaml").read_text().replace("model: base", "modle: base"))
    with pytest.raises(InvalidJob, match="modle"):
        plan_cluster(read_request(path, TWO))


def test_a_job_whose_model_is_a_missing_variable_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text((LEDGER / "job.yaml").read_text().replace("model: base", "model: ${AGENT_RFT_NO_SUCH_MODEL}"))
    with pytest.raises(InvalidJob) as raised:
        plan_cluster(read_request(path, TWO))
    assert "model" in {problem.field for problem in raised.value.problems}


def test_parameters_are_counted_from_the_headers_of_the_weights() -> None:
    model, problems = read_sizes(ModelFolder.find(str(LEDGER / "base")))
    assert problems == []
    assert model is not None
    assert (model.shape.num_parameters, model.shape.vocabulary, model.shape.query_width) == (560_608, 298, 160)


def test_the_sizes_of_a_node_follow_the_way_of_the_weights() -> None:
    """One version beside the first rank, buckets and an arriving version at the engine."""
    needs = [node["needs"] for node in plan_to_json(plan_cluster(read_request(LEDGER / "job.yaml", TWO)))["nodes"]]
    version = 560_608 * 4
    engine, rank = (found["object_store_bytes"] - STORE_BYTES for found in needs)
    assert (engine, rank) == (2 * version, 1.25 * version)
    assert [found["shm_bytes"] - found["object_store_bytes"] for found in needs] == [version, 0]


def test_a_node_with_less_than_that_is_warned_of_and_the_job_still_fits() -> None:
    small = [replace(node, object_store_bytes=1 << 20, shm_bytes=1 << 20, tmp_bytes=GIB) for node in TWO]
    plan = plan_cluster(read_request(LEDGER / "job.yaml", small))
    assert plan.fits
    codes = ["small_object_store", "small_shared_memory", "small_tmp"]
    assert [warning.code for warning in plan.warnings] == codes * 2
    console = Console(record=True, width=120, file=io.StringIO())
    print_cluster_plan(console, plan)
    assert console.export_text().count("warning") == 6


def test_the_smallest_layout_is_printed_as_in_a_job_file_without_times() -> None:
    too_many = read_request(LEDGER / "job.yaml", TWO).with_settings({"cluster.learner_ranks": 3})
    console = Console(record=True, width=400, file=io.StringIO())
    assert not plan_and_print(console, too_many, smallest=False, as_json=False)
    assert "-> set cluster.learner_ranks to auto" in console.export_text()
    request = read_request(LEDGER / "job.yaml", TWO)
    assert plan_and_print(console, request, smallest=True, as_json=False)
    text = console.export_text()
    assert "\n  learner_ranks: 1\n" in text and "lora: 'off'\n" in text
    assert not re.search(r"\d ?(s|seconds|min|minutes|hours)\b|GPU hours|estimated", text)
    assert "RAY_JOB_STOP_WAIT_TIME_S=30, terminationGracePeriodSeconds: 60" in text


def test_the_json_of_the_smallest_layout_has_its_settings_and_says_that_nothing_is_measured() -> None:
    request = read_request(LEDGER / "job.yaml", TWO)
    console = Console(record=True, width=80, file=io.StringIO())
    assert plan_and_print(console, request, smallest=True, as_json=True)
    found = json.loads(console.export_text())
    assert found["fits"] and found["smallest"]["cluster.learner_ranks"] == 1
    assert "estimate" not in found
    stop = found["stop"]
    assert stop["checkpoint_bytes"] == 560_608 * 16 and not stop["measured"]
    assert stop["grace_s"] > stop["wait_s"] > stop["checkpoint_bytes"] / stop["write_bytes_per_s"]
