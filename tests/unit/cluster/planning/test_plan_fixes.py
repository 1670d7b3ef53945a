"""Fixes: what is printed fits."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rft.cluster.planning.cluster_plan import NONE_FOUND, find_fixes, plan_cluster
from agent_rft.cluster.planning.layout import lay_out
from agent_rft.cluster.planning.memory_estimates import GIB
from agent_rft.cluster.planning.model_shape import ModelShape
from agent_rft.cluster.planning.placement import PlanRequest
from agent_rft.cluster.planning.plan_nodes import Node
from tests.support.builders import job

QWEN3_2B = ModelShape(1_720_574_976, 28, 2048, 16, 8, 128, 6144, 151_936)
QWEN3_8B = ModelShape(8_190_735_360, 36, 4096, 32, 8, 128, 12_288, 151_936)
SMALL = ModelShape(135_000_000, 30, 576, 9, 3, 64, 1536, 49_152)
ONE_GPU = Node("box", cores=16, gpus=1, memory_bytes=256 * GIB, gpu_memory_bytes=80 * GIB)
EIGHT_GPUS = Node("gpus", cores=64, gpus=8, memory_bytes=512 * GIB, gpu_memory_bytes=80 * GIB)


def request(*nodes: Node, model: ModelShape = QWEN3_8B, context: int = 16_384, **cluster: Any) -> PlanRequest:
    """A job that trains all weights."""
    return PlanRequest(job({"algorithm": {"lora": "off"}}, cluster=cluster), nodes, model, context)


def fix(of: PlanRequest) -> str:
    plan = plan_cluster(of)
    (text,) = {problem.fix for problem in (*plan.resource_problems, *plan.problems)}
    return text


# -- fixes ----------------------------------------------------------------------------------------------------------


def test_a_stage_of_zero_is_named_where_fewer_tokens_would_not_help() -> None:
    assert fix(request(EIGHT_GPUS, learner_ranks=4, zero_stage=1, offload="none")).startswith(
        "set cluster.zero_stage to auto"
    )


def test_with_one_gpu_the_fix_leads_to_a_job_that_fits() -> None:
    assert plan_cluster(request(ONE_GPU, model=QWEN3_2B, context=4096)).fits
    apart = request(ONE_GPU, model=QWEN3_2B, context=4096, colocated=False)
    assert fix(apart) == "set cluster.colocated to auto; or add 1 node like box"
    assert fix(request(ONE_GPU)).startswith("set method.reinforcement.algorithm.lora to {}")


def test_if_nothing_fits_that_is_what_it_says() -> None:
    tiny = Node("tiny", cores=1, memory_bytes=GIB)
    assert find_fixes(request(tiny)) == []
    assert fix(request(tiny)) == NONE_FOUND


def test_a_job_in_the_headroom_of_a_gpu_does_not_fit() -> None:
    given = {"learner_ranks": 4, "zero_stage": 3, "offload": "none", "micro_batch_tokens": 16_384}
    needed = lay_out(request(EIGHT_GPUS, **given)).assignments[-1].memory
    assert needed is not None

    def fits(gpu_bytes: float) -> bool:
        node = Node("gpus", cores=64, gpus=8, memory_bytes=512 * GIB, gpu_memory_bytes=round(gpu_bytes))
        return lay_out(request(node, **given)).fits

    assert not fits(needed.gpu_bytes * 1.08) and fits(needed.gpu_bytes * 1.09)


# -- for jobs and nodes of all kinds -----------------------------------------------------------------------------------

GIBS = st.sampled_from([8, 24, 40, 80, 141])
NODES = st.builds(
    lambda name, cores, gpus, gpu, memory: Node(name, cores, gpus, memory * GIB, gpu * GIB if gpus else None),
    st.just("a"),
    st.integers(1, 16),
    st.integers(0, 4),
    GIBS,
    st.sampled_from([4, 16, 64, 256]),
)
CLUSTERS = st.fixed_dictionaries(
    {
        "engines": st.integers(1, 3),
        "learner_ranks": st.integers(1, 6),
        "engine_cores": st.integers(1, 4),
        "rank_cores": st.integers(1, 4),
        "zero_stage": st.integers(0, 3),
        "micro_batch_tokens": st.sampled_from(["auto", 1024, 8192, 32_768]),
        "colocated": st.booleans(),
        "engine_gpus": st.sampled_from(["auto", 0, 1, 2, 3]),
        "dtype": st.sampled_from(["auto", "auto", "float32", "bfloat16"]),
    }
)


@st.composite
def requests(draw: st.DrawFn) -> PlanRequest:
    kinds = draw(st.lists(NODES, min_size=1, max_size=3))
    nodes = tuple(Node(f"n{i}", *_sizes(node)) for i, node in enumerate(kinds))
    staleness, kl_coef = draw(st.sampled_from([0, 1])), draw(st.sampled_from([0.0, 0.01]))
    algorithm = {"max_staleness": staleness, "kl_coef": kl_coef}
    made = job({"algorithm": algorithm}, cluster=draw(CLUSTERS))
    return PlanRequest(
        made, nodes, draw(st.sampled_from([SMALL, QWEN3_2B, QWEN3_8B])), draw(st.sampled_from([2048, 16_384]))
    )


def _sizes(node: Node) -> tuple[Any, ...]:
    return node.cores, node.gpus, node.memory_bytes, node.gpu_memory_bytes


@settings(max_examples=10, deadline=None)
@given(requests())
def test_each_fix_fits(made: PlanRequest) -> None:
    if not lay_out(made).fits:
        for found in find_fixes(made):
            assert lay_out(found.apply(made)).fits, found
