"""One GPU that engine and rank share: concurrently if both fit, else by time-sharing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rft.cluster.planning.cluster_plan import (
    MOVE_BYTES_PER_S,
    NONE_FOUND,
    estimate_step,
    find_fixes,
    plan_cluster,
)
from agent_rft.cluster.planning.layout import MIN_SEQUENCES_AT_ONCE, ClusterPlan, lay_out
from agent_rft.cluster.planning.memory_estimates import CUDA_CONTEXT_BYTES, GIB, MemoryEstimate
from agent_rft.cluster.planning.model_shape import ModelShape
from agent_rft.cluster.planning.placement import PlanRequest
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.cluster.planning.plan_view import describe_sharing
from agent_rft.trainer.learner.rank_memory_sizes import OFFLOAD_SLACK
from tests.support.builders import job

QWEN2_5_HALF_B = ModelShape(494_032_768, 24, 896, 14, 2, 64, 4864, 151_936)
QWEN2_5_1_5B = ModelShape(1_543_714_304, 28, 1536, 12, 2, 128, 8960, 151_936)
ONE_24 = Node("box", cores=8, gpus=1, memory_bytes=64 * GIB, gpu_memory_bytes=24 * GIB)


def request(node: Node, model: ModelShape | None, context: int = 4096, **cluster: Any) -> PlanRequest:
    """A job that trains all weights, without offload unless it is given."""
    made = job({"algorithm": {"lora": "off"}}, cluster={"offload": "none"} | cluster)
    return PlanRequest(made, (node,), model, context)


def planned(node: Node, model: ModelShape | None, context: int = 4096, **cluster: Any) -> ClusterPlan:
    return plan_cluster(request(node, model, context, **cluster))


def test_with_one_gpu_nothing_needs_to_be_set() -> None:
    plan = planned(ONE_24, QWEN2_5_HALF_B)
    assert plan.fits and plan.placement.shares_gpus
    assert plan.placement.bundles == [{"CPU": 8.0, "GPU": 1.0}]


def test_what_fits_at_once_shares_the_memory() -> None:
    plan = planned(ONE_24, QWEN2_5_HALF_B)
    engine, rank = plan.assignments
    assert not plan.placement.takes_turns and engine.memory is not None and rank.memory is not None
    assert ONE_24.usable_gpu_bytes is not None
    assert engine.memory.gpu_bytes + rank.memory.gpu_bytes <= ONE_24.usable_gpu_bytes
    assert (engine.memory.num_sequences or 0) >= MIN_SEQUENCES_AT_ONCE
    assert "share a GPU and run concurrently" in str(describe_sharing(plan.placement))


def test_engine_and_rank_that_do_not_fit_together_time_share_the_gpu() -> None:
    plan = planned(replace(ONE_24, gpu_memory_bytes=18 * GIB), QWEN2_5_HALF_B)
    engine, rank = plan.assignments
    assert plan.fits and plan.placement.takes_turns and engine.memory is not None and rank.memory is not None
    for memory in (engine.memory, rank.memory):
        assert memory.gpu["other CUDA context"] == CUDA_CONTEXT_BYTES
    assert engine.memory.host["offloaded"] == engine.memory.gpu["weights"]
    state = ("weights", "gradients", "optimizer")
    kept = sum(rank.memory.gpu[part] for part in state)
    assert kept * (1 + OFFLOAD_SLACK) == pytest.approx(rank.memory.host["offloaded"])
    assert "take turns" in str(describe_sharing(plan.placement)) and "not yet measured" in str(
        describe_sharing(plan.placement)
    )


def test_of_two_gpus_each_has_one_unless_the_job_shares_them() -> None:
    two = replace(ONE_24, gpus=2)
    assert not planned(two, QWEN2_5_HALF_B).placement.colocated
    assert planned(two, QWEN2_5_HALF_B, colocated=True).placement.shares_gpus
    assert describe_sharing(planned(two, QWEN2_5_HALF_B).placement) is None


def test_a_supervised_job_or_one_that_only_grades_shares_nothing() -> None:
    supervised = PlanRequest(job(method={"type": "supervised"}), (ONE_24,), QWEN2_5_HALF_B, 4096)
    grades = replace(request(ONE_24, QWEN2_5_HALF_B), trains=False)
    for made in (supervised, grades):
        assert lay_out(made).fits and not lay_out(made).placement.colocated


@pytest.mark.parametrize("gpu_bytes", [None, 24 * GIB])
def test_without_known_sizes_the_gpu_is_time_shared(gpu_bytes: int | None) -> None:
    model = None if gpu_bytes else QWEN2_5_HALF_B
    assert planned(replace(ONE_24, gpu_memory_bytes=gpu_bytes), model).placement.takes_turns


# -- what fits, by calculation -----------------------------------------------------------------------------------------


def test_half_a_billion_parameters_are_trained_in_full_on_24_gib() -> None:
    assert planned(ONE_24, QWEN2_5_HALF_B, context=16_384).fits


def test_one_and_a_half_billion_need_the_optimizer_in_host_memory_there() -> None:
    node = replace(ONE_24, memory_bytes=96 * GIB)
    refused = planned(node, QWEN2_5_1_5B)
    assert not refused.fits
    assert refused.problems[0].fix.startswith("set method.reinforcement.algorithm.lora to {}")
    assert planned(node, QWEN2_5_1_5B, offload="auto").placement.offload == "optimizer"
    assert planned(node, QWEN2_5_1_5B, offload="optimizer").fits


def test_offloading_moves_memory_from_the_gpu_to_its_node() -> None:
    def rank(offload: str) -> MemoryEstimate:
        memory = lay_out(request(ONE_24, QWEN2_5_1_5B, offload=offload)).assignments[1].memory
        assert memory is not None
        return memory

    none, optimizer, both = map(rank, ("none", "optimizer", "optimizer_and_activations"))
    assert none.gpu["optimizer"] == optimizer.host["optimizer"] == 12 * QWEN2_5_1_5B.num_parameters
    assert "optimizer" not in optimizer.gpu and optimizer.gpu["gradients"] < none.gpu["gradients"] / 5
    assert both.gpu["activations"] + both.host["activations"] == optimizer.gpu["activations"]


QWEN3_8B = ModelShape(8_190_735_360, 36, 4096, 32, 8, 128, 12_288, 151_936)
ONE_80 = Node("box", cores=16, gpus=1, memory_bytes=128 * GIB, gpu_memory_bytes=80 * GIB)


def test_eight_billion_parameters_are_trained_with_lora_at_16k_on_80_gib() -> None:
    made = PlanRequest(job({"algorithm": {"lora": {}}}), (ONE_80,), QWEN3_8B, 16_384)
    assert plan_cluster(made).fits and not plan_cluster(made).placement.takes_turns
    full = plan_cluster(request(ONE_80, QWEN3_8B, context=16_384))
    assert full.problems[0].fix.startswith("set method.reinforcement.algorithm.lora to {}")


GPUS = st.builds(
    lambda gpu, host, cores: Node("box", cores, 1, host * GIB, gpu * GIB),
    st.sampled_from([8, 16, 24, 40, 80, 141]),
    st.sampled_from([16, 64, 256, 1024]),
    st.integers(1, 16),
)


@settings(max_examples=10, deadline=None)
@given(
    GPUS,
    st.sampled_from([QWEN2_5_HALF_B, QWEN2_5_1_5B, QWEN3_8B]),
    st.sampled_from([2048, 16_384]),
    st.fixed_dictionaries(
        {
            "colocated": st.sampled_from(["auto", True, False]),
            "offload": st.sampled_from(["none", "optimizer", "optimizer_and_activations"]),
            "learner_ranks": st.integers(1, 2),
            "weight_transport": st.sampled_from(["object_store", "broadcast"]),
        }
    ),
)
def test_the_first_fix_of_a_refused_plan_leads_to_one_that_is_accepted(
    node: Node, model: ModelShape, context: int, cluster: dict[str, Any]
) -> None:
    made = request(node, model, context, **cluster)
    if not lay_out(made).fits:
        fixes = find_fixes(made)
        accepted = [plan_cluster(fix.apply(made)).fits for fix in fixes]
        assert all(accepted)
        said = {problem.fix for problem in (*plan_cluster(made).resource_problems, *plan_cluster(made).problems)}
        assert said == {"; or ".join(map(str, fixes)) or NONE_FOUND}


def test_changes_of_the_gpu_lease_take_time_in_the_cost_of_a_step() -> None:
    made = request(replace(ONE_24, gpu_memory_bytes=18 * GIB), QWEN2_5_HALF_B)
    plan = plan_cluster(made)
    cost = estimate_step(made, plan)
    memory = [place.memory for place in plan.assignments if place.memory is not None]
    resident = [replace(place, memory=replace(place.memory, host={})) for place in plan.assignments if place.memory]
    stays = estimate_step(made, replace(plan, assignments=tuple(resident)))
    assert cost is not None and stays is not None and cost.update_s == stays.update_s
    asleep = sum(parts.host["offloaded"] for parts in memory if "offloaded" in parts.host)
    assert cost.step_s - stays.step_s == pytest.approx(2 * asleep / MOVE_BYTES_PER_S) and asleep > GIB
