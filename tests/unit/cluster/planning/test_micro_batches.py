"""`micro_batch_tokens`: what `auto` becomes on described nodes, what numbers do, and what a resumed run keeps."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from agent_rft.cluster.planning.cluster_plan import find_fixes, plan_cluster
from agent_rft.cluster.planning.layout import ClusterPlan, lay_out
from agent_rft.cluster.planning.memory_estimates import GIB
from agent_rft.cluster.planning.model_shape import ModelShape
from agent_rft.cluster.planning.placement import PlanRequest, RecordedLayout
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.cluster.planning.plan_view import plan_and_print
from agent_rft.events import SettingChosen
from tests.support.builders import job

SMOLLM2_135M = ModelShape(134_515_008, 30, 576, 9, 3, 64, 1536, 49_152)
QWEN3_2B = ModelShape(1_720_574_976, 28, 2048, 16, 8, 128, 6144, 151_936)
QWEN3_8B = ModelShape(8_190_735_360, 36, 4096, 32, 8, 128, 12_288, 151_936)
CORES_24 = Node("box", cores=8, memory_bytes=24 * GIB)
TWO_GPUS = Node("gpus", cores=32, gpus=2, memory_bytes=256 * GIB, gpu_memory_bytes=80 * GIB)
UNKNOWN = replace(TWO_GPUS, memory_bytes=None, gpu_memory_bytes=None)


def request(node: Node, model: ModelShape, context: int, recorded: int | None = None, **cluster: Any) -> PlanRequest:
    """A job that trains all weights without offload."""
    made = job({"algorithm": {"lora": "off"}}, cluster={"offload": "none"} | cluster)
    return PlanRequest(made, (node,), model, context, recorded_layout=RecordedLayout(recorded))


def size_of(plan: ClusterPlan) -> int:
    return plan.placement.micro_batch_tokens


def chosen(plan: ClusterPlan) -> list[SettingChosen]:
    """What was chosen for the micro-batch."""
    return [choice for choice in plan.choices if choice.setting == "cluster.micro_batch_tokens"]


# -- auto --------------------------------------------------------------------------------------------------------------


def test_a_small_model_with_a_short_context_fits_a_machine_with_24_gib() -> None:
    plan = plan_cluster(request(CORES_24, SMOLLM2_135M, 256))
    (choice,) = chosen(plan)
    assert plan.fits and choice.value == 7168
    assert "as many as memory allows" in str(choice)
    refused = plan_cluster(request(CORES_24, SMOLLM2_135M, 256, micro_batch_tokens=8192))
    assert "23.0 GiB of memory is needed" in refused.problems[0].message
    assert refused.problems[0].fix == "set cluster.micro_batch_tokens to auto"


@pytest.mark.parametrize(("context", "size"), [(2048, 8192), (8192, 8192), (10_000, 10_000), (16_384, 16_384)])
def test_auto_is_8192_or_the_context_length_where_memory_allows(context: int, size: int) -> None:
    plan = plan_cluster(request(TWO_GPUS, QWEN3_2B, context))
    (choice,) = chosen(plan)
    assert plan.fits and choice.value == size
    assert "whichever is larger" in str(choice)


@pytest.mark.parametrize(("gpu_gib", "size"), [(42, 8192), (40.5, 4096), (39.8, 2100)])
def test_auto_is_less_on_a_small_gpu_and_still_holds_the_longest_sequence(gpu_gib: float, size: int) -> None:
    plan = plan_cluster(request(replace(TWO_GPUS, gpu_memory_bytes=round(gpu_gib * GIB)), QWEN3_2B, 2100))
    assert plan.fits and size_of(plan) == size


def test_memory_that_is_unknown_or_on_missing_nodes_does_not_limit_auto() -> None:
    assert size_of(plan_cluster(request(UNKNOWN, QWEN3_8B, 256))) == 8192
    missing = plan_cluster(request(replace(CORES_24, cores=0), SMOLLM2_135M, 256))
    assert missing.resource_problems and size_of(missing) == 8192


def test_a_job_that_fits_with_no_size_is_refused_with_fixes_that_help() -> None:
    hopeless = request(CORES_24, SMOLLM2_135M, 8192)
    plan = plan_cluster(hopeless)
    assert not plan.fits and size_of(plan) == 8192
    assert [problem.code for problem in plan.problems] == ["too_little_memory"]
    fixes = "set method.reinforcement.algorithm.lora to {}; or set cluster.context_length to 4096"
    assert plan.problems[0].fix == fixes
    assert all(lay_out(fix.apply(hopeless)).fits for fix in find_fixes(hopeless))


def test_a_run_that_only_grades_has_no_micro_batches() -> None:
    plan = plan_cluster(replace(request(CORES_24, SMOLLM2_135M, 256), trains=False))
    assert plan.choices == () and RecordedLayout.from_placement(plan.placement) == RecordedLayout(None)


def test_a_plan_prints_the_size_with_its_reason() -> None:
    made = request(CORES_24, SMOLLM2_135M, 256)
    console = Console(record=True, width=400, file=io.StringIO())
    assert plan_and_print(console, made, smallest=False, as_json=False)
    assert "cluster.micro_batch_tokens: auto is 7168 (as many as memory allows" in console.export_text()
    assert plan_and_print(console, made, smallest=False, as_json=True)
    assert json.loads(console.export_text())["micro_batch_tokens"] == 7168


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 100, 5000, 32_768])
@pytest.mark.parametrize("node", [CORES_24, TWO_GPUS, UNKNOWN])
def test_a_number_is_used_as_it_is(node: Node, number: int) -> None:
    plan = plan_cluster(request(node, SMOLLM2_135M, 2048, micro_batch_tokens=number))
    assert size_of(plan) == number and chosen(plan) == []


# -- a resumed run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "context", "recorded", "size"),
    [
        (TWO_GPUS, 2048, 4096, 4096),
        (TWO_GPUS, 2048, 16_384, 16_384),
        (CORES_24, 256, 6000, 6000),
        (CORES_24, 256, 8192, 7168),
        (TWO_GPUS, 16_384, 8192, 16_384),
    ],
    ids=["less than today", "more than today", "not a multiple", "no longer fits", "no longer holds the context"],
)
def test_a_recorded_size_is_kept_while_it_fits_and_holds_the_context(
    node: Node, context: int, recorded: int, size: int
) -> None:
    plan = plan_cluster(request(node, SMOLLM2_135M, context, recorded))
    assert plan.fits and size_of(plan) == size


# -- for nodes and models of all kinds ---------------------------------------------------------------------------------

NODES = st.builds(
    lambda gpus, gpu, memory: Node("box", 16, gpus, memory * GIB, gpu * GIB if gpus else None),
    st.integers(0, 3),
    st.integers(8, 100),
    st.integers(4, 64),
)


@settings(max_examples=200, deadline=None)
@given(
    NODES,
    st.sampled_from([SMOLLM2_135M, QWEN3_2B, QWEN3_8B]),
    st.one_of(st.integers(1, 9000), st.sampled_from([512, 1024, 4096, 8192, 16_384])),
    st.fixed_dictionaries(
        {
            "learner_ranks": st.integers(1, 3),
            "zero_stage": st.integers(0, 3),
            "colocated": st.sampled_from(["auto", True, False]),
            "engine_gpus": st.sampled_from(["auto", 0]),
        }
    ),
)
@example(CORES_24, SMOLLM2_135M, 256, {})
def test_the_size_fits_and_the_next_larger_one_does_not(
    node: Node, model: ModelShape, context: int, cluster: dict[str, Any]
) -> None:
    made = request(node, model, context, **cluster)
    plan = lay_out(made)
    size = size_of(plan)

    def with_number(number: int) -> ClusterPlan:
        return lay_out(made.with_settings({"cluster.micro_batch_tokens": number}))

    assert with_number(size).problems == plan.problems and with_number(size).placement == plan.placement
    assert size >= context
    if plan.memory_problems:
        assert size == context and with_number(1).memory_problems  # nor does any smaller one fit
    elif size < 8192:
        assert size == context or size % 1024 == 0
        assert with_number((size // 1024 + 1) * 1024).memory_problems
    else:
        assert size == max(8192, context)
