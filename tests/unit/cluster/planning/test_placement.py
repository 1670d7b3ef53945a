"""Placement: what `auto` means on cores and on GPUs, which node each actor is assigned to, and what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent_rft.cluster.planning.layout import DISPATCHER_BYTES, ClusterPlan, lay_out
from agent_rft.cluster.planning.memory_estimates import (
    GIB,
    activation_bytes,
    engine_memory,
    kv_bytes_per_token,
    rank_memory,
)
from agent_rft.cluster.planning.model_shape import ModelShape
from agent_rft.cluster.planning.placement import Placement, PlanRequest, assign_nodes, num_dispatchers
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.errors import Problem
from agent_rft.spec.endpoints import ToolSpec
from agent_rft.spec.job import JobSpec
from agent_rft.spec.model_options import LoraSpec
from tests.support.builders import job
from tests.support.plans import plan_placement

LAPTOP = Node("laptop", cores=2, memory_bytes=16 * GIB)
EIGHT_GPUS = Node("gpus", cores=64, gpus=8, memory_bytes=512 * GIB, gpu_memory_bytes=80 * GIB)
QWEN3_8B = ModelShape(
    8_190_735_360, 36, 4096, heads=32, kv_heads=8, head_dim=128, intermediate=12_288, vocabulary=151_936
)


GIVEN = {
    "engines": 1,
    "engine_cores": 1,
    "learner_ranks": 1,
    "rank_cores": 1,
    "zero_stage": 0,
    "offload": "none",
    "max_num_seqs": 64,
}


def plan(*nodes: Node, model: ModelShape | None = None, context: int = 16_384, **cluster: Any) -> ClusterPlan:
    """The plan of a job that trains all weights and gives the settings in GIVEN, or others for them."""
    return plan_placement(job({"algorithm": {"lora": "off"}}, cluster=GIVEN | cluster), nodes, model, context)


def resolved(**cluster: Any) -> Placement:
    """The settings of `cluster`, resolved for a node with eight GPUs and a context of 1,024 tokens."""
    made = job({"algorithm": {"lora": "off"}}, cluster=GIVEN | cluster)
    return lay_out(PlanRequest(made, (EIGHT_GPUS,), QWEN3_8B, 1024)).placement


def on_policy(**cluster: Any) -> JobSpec:
    return job({"algorithm": {"max_staleness": 0}}, cluster=cluster)


def codes(problems: tuple[Problem, ...]) -> list[str]:
    return [problem.code for problem in problems]


def tools(*limits: int) -> list[ToolSpec]:
    """Tools with these values of `max_concurrency`."""
    url = "https://tools.example"
    return [ToolSpec(name=f"tool-{i}", server_url=url, max_concurrency=limit) for i, limit in enumerate(limits)]


@pytest.mark.parametrize(
    ("engines", "sequences", "limits", "expected"),
    [
        (1, 64, [], 1),
        (1, 64, [64], 1),
        (4, 256, [5_000, 5_000], 1),
        (5, 256, [5_000, 5_000], 2),
        (64, 256, [64, 64], 1),
        (64, 256, [1_024, 1_025], 3),
        (64, 256, [100_000], 16),
    ],
)
def test_dispatchers_follow_from_the_calls_at_a_time(
    engines: int, sequences: int, limits: list[int], expected: int
) -> None:
    placement = replace(resolved(), engines=engines, max_num_seqs=sequences)
    assert num_dispatchers(tools(*limits), placement) == expected


def test_the_memory_of_all_dispatchers_is_planned() -> None:
    def used(limit: int) -> int:
        tool = {"name": "a", "server_url": "https://tools.example", "max_concurrency": limit}
        made = job({"algorithm": {"lora": "off"}, "tools": [tool]}, cluster=GIVEN | {"max_num_seqs": 65_536})
        return plan_placement(made, [EIGHT_GPUS], None, 16_384).host_bytes[0]

    assert used(4_096) - used(1_024) == 3 * DISPATCHER_BYTES


# -- what auto means ---------------------------------------------------------------------------------------------------


def test_two_cores_run_one_engine_and_one_learner_in_float32() -> None:
    made = plan(LAPTOP)
    assert made.resource_problems == made.problems == ()
    assert made.placement.bundles == [{"CPU": 1.0}, {"CPU": 1.0}]
    assert made.placement.dtype == "float32"


def test_gpus_are_used_if_there_are_any() -> None:
    made = plan(EIGHT_GPUS, engines=3, learner_ranks=2, engine_gpus=2, rank_cores=4)
    assert made.resource_problems == made.problems == ()
    assert made.placement.bundles == [{"CPU": 1.0, "GPU": 2.0}] * 3 + [{"CPU": 4.0, "GPU": 1.0}] * 2
    assert made.placement.dtype == "bfloat16"
    assert plan(EIGHT_GPUS).placement.engine_gpus == 1


def test_a_job_can_stay_on_cores_of_nodes_with_gpus() -> None:
    made = plan(EIGHT_GPUS, engine_gpus=0)
    assert made.resource_problems == made.problems == ()
    assert made.placement.bundles == [{"CPU": 1.0}, {"CPU": 1.0}]
    assert made.placement.dtype == "float32"


def test_a_supervised_job_has_no_engines() -> None:
    made = plan_placement(job(method={"type": "supervised"}), [replace(LAPTOP, cores=1)], None, 2048)
    assert made.resource_problems == ()
    assert [place.role for place in made.assignments] == ["learner rank"]


def test_a_run_that_only_grades_needs_room_for_engines_only() -> None:
    one_core = replace(LAPTOP, cores=1)
    assert codes(plan(one_core).resource_problems) == ["too_few_resources"]
    for spec in (job(), on_policy(colocated=True)):
        made = plan_placement(spec, [one_core], None, 2048, learner=False)
        assert made.resource_problems == made.problems == ()
        assert [place.role for place in made.assignments] == ["engine"]


# -- assignment --------------------------------------------------------------------------------------------------------


def test_actors_are_packed_onto_few_nodes_and_engines_are_never_split() -> None:
    small, large = replace(EIGHT_GPUS, name="small", gpus=4), replace(EIGHT_GPUS, name="large")
    made = plan(small, large, engines=2, engine_gpus=4, learner_ranks=4)
    assert made.resource_problems == ()
    nodes = [(place.role, place.node.name if place.node else None) for place in made.assignments]
    assert [node for role, node in nodes if role == "engine"] in (["small", "large"], ["large", "small"])
    assert {node for role, node in nodes if role == "learner rank"} == {"large"}


def test_a_bundle_that_fits_no_single_node_is_reported_although_the_total_suffices() -> None:
    nodes = [replace(EIGHT_GPUS, name=name, gpus=3) for name in "abc"]
    (problem,) = plan(*nodes, engines=2, engine_gpus=4, learner_ranks=1).resource_problems
    assert problem.message == "engine 0 needs 1 cores, 4 GPUs, but no single node has that much"
    (problem,) = plan(*nodes, engines=4, engine_gpus=2, learner_ranks=1).resource_problems
    assert problem.message == (
        "engine 3 needs 1 cores, 2 GPUs on one node, but no node has that much free next to the job's other parts"
    )


def test_a_bundle_is_assigned_to_the_node_with_the_least_left() -> None:
    assert assign_nodes([{"CPU": 2.0}], [{"CPU": 8.0}, {"CPU": 2.0}]) == [1]
    assert assign_nodes([{"CPU": 2.0}, {"CPU": 3.0}], [{"CPU": 4.0}, {"CPU": 4.0}]) == [1, 0]
    assert assign_nodes([{"CPU": 9.0}], [{"CPU": 8.0}]) == [None]


@pytest.mark.parametrize(
    ("node", "cluster", "field", "message", "fix"),
    [
        (
            LAPTOP,
            {"engines": 2, "engine_cores": 3, "learner_ranks": 2},
            "cluster",
            "needs 8 cores (engines 2 x 3, learner ranks 2 x 1), but the cluster has 2",
            "set cluster.learner_ranks to auto, cluster.engines to auto and cluster.engine_cores to auto",
        ),
        (
            LAPTOP,
            {"engine_gpus": 1},
            "cluster.engine_gpus",
            "needs 2 GPUs (engines 1 x 1, learner ranks 1 x 1), but the cluster has 0",
            "set cluster.engine_gpus to auto",
        ),
        (EIGHT_GPUS, {"engines": 8, "engine_cores": 4}, "cluster", "needs 9 GPUs", "set cluster.engines to auto"),
        (LAPTOP, {"engine_cores": 5, "engine_gpus": 4}, "cluster", "needs 6 cores", "cluster.engine_gpus to auto and"),
    ],
)
def test_missing_resources_are_reported_with_numbers_and_a_fix(
    node: Node, cluster: dict[str, Any], field: str, message: str, fix: str
) -> None:
    first, *_ = plan(node, **cluster).resource_problems
    assert (first.code, first.field) == ("too_few_resources", field)
    assert message in first.message
    assert fix in first.fix


def test_missing_cores_and_gpus_are_reported_together() -> None:
    lacking = plan(LAPTOP, engine_cores=5, engine_gpus=4).resource_problems
    assert [problem.field for problem in lacking] == ["cluster", "cluster.engine_gpus"]


@pytest.mark.parametrize(("node", "engine_gpus"), [(LAPTOP, "auto"), (EIGHT_GPUS, 0)])
def test_bfloat16_on_cores_is_refused_with_the_reason(node: Node, engine_gpus: object) -> None:
    (problem,) = plan(node, dtype="bfloat16", engine_gpus=engine_gpus).problems
    assert (problem.code, problem.field) == ("bfloat16_on_cpu", "cluster.dtype")
    assert "round differently" in problem.message
    assert "set cluster.dtype to auto" in problem.fix


# -- colocated ---------------------------------------------------------------------------------------------------------


def test_colocated_engines_and_ranks_take_turns_on_one_core() -> None:
    made = plan_placement(on_policy(colocated=True), [replace(LAPTOP, cores=1)], None, 2048)
    assert made.resource_problems == made.problems == ()
    assert made.placement.bundles == [{"CPU": 1.0}]
    wide = plan_placement(on_policy(colocated=True, engines=2, rank_cores=2), [LAPTOP], None, 2048)
    assert wide.placement.bundles == [{"CPU": 2.0}] * 2
    assert "needs 4 cores (2 x 2, shared by engines and learner ranks)" in wide.resource_problems[0].message


def test_an_engine_of_several_gpus_shares_none() -> None:
    spec = on_policy(colocated=True, engine_gpus=4, learner_ranks=4, rank_cores=1)
    made = plan_placement(spec, [EIGHT_GPUS], None, 2048)
    assert made.placement.bundles == [{"CPU": 16.0, "GPU": 4.0}]
    assert [made.placement.rank_bundle(i) for i in range(4)] == [0, 0, 0, 0]
    assert codes(made.problems) == ["colocated_multi_gpu_engine"]
    shared = plan_placement(on_policy(colocated=True, engines=4, learner_ranks=4), [EIGHT_GPUS], None, 2048)
    assert shared.problems == () and shared.placement.bundles == [{"CPU": 8.0, "GPU": 1.0}] * 4


def test_weights_are_not_broadcast_to_the_same_gpu() -> None:
    (problem,) = plan(replace(EIGHT_GPUS, gpus=1), weight_transport="broadcast").problems
    assert problem.code == "broadcast_on_shared_gpus"
    assert problem.fix.startswith("set cluster.weight_transport to object_store")


def test_turns_need_no_other_setting_but_a_job_that_samples() -> None:
    assert plan(LAPTOP, colocated=True).problems == ()
    supervised = plan_placement(job(method={"type": "supervised"}, cluster={"colocated": True}), [LAPTOP], None, 2048)
    assert codes(supervised.problems) == ["colocated_without_engines"]


# -- memory ------------------------------------------------------------------------------------------------------------


def test_a_cached_token_takes_a_key_and_a_value_per_layer_and_head() -> None:
    """36 layers x 8 key-value heads x 128 x 2 bytes, twice: 144 KiB."""
    assert kv_bytes_per_token(QWEN3_8B, itemsize=2) == 144 * 1024
    assert kv_bytes_per_token(QWEN3_8B, itemsize=2, gpus=4) == 36 * 1024
    assert kv_bytes_per_token(QWEN3_8B, itemsize=2, gpus=16) == 18 * 1024  # each head is on two GPUs


def test_the_memory_that_weights_leave_on_a_gpu_is_cache() -> None:
    def engine(gpus: int) -> Any:
        return engine_memory(QWEN3_8B, resolved(), gpus=gpus, itemsize=2, context_length=16_384, gpu_bytes=80 * GIB)

    one, two = engine(1), engine(2)
    assert one.gpu["weights"] == 2 * QWEN3_8B.num_parameters
    assert one.gpu_bytes == pytest.approx(0.85 * 80 * GIB)
    assert 15 < one.num_sequences < 23
    assert two.num_sequences > 2.2 * one.num_sequences


def test_only_on_cpus_a_longer_context_needs_more_memory_for_activations() -> None:
    def activations(gpus: int, context: int) -> int:
        sizes = engine_memory(
            QWEN3_8B, resolved(), gpus=gpus, itemsize=2, context_length=context, gpu_bytes=80 * GIB if gpus else None
        )
        return (sizes.gpu if gpus else sizes.host)["activations"]

    assert activations(1, 32_768) == activations(1, 1024) == 8192 * (4 * 4096 + 3 * 12_288) * 2
    assert activations(0, 32_768) == 4 * activations(0, 8192) == 4 * activations(0, 1024)


@pytest.mark.parametrize(
    ("stage", "ranks", "bytes_per_parameter"),
    [
        (0, 1, 2 + (4 + 2) + 12),
        (1, 8, 2 + (4 + 2) + 12 / 8),
        (2, 8, 2 + 4 / 8 + 12 / 8),
        (3, 8, 2 / 8 + 4 / 8 + 12 / 8),
    ],
)
def test_zero_stages_share_optimizer_then_gradients_then_weights(
    stage: int, ranks: int, bytes_per_parameter: float
) -> None:
    cluster = resolved(zero_stage=stage, learner_ranks=ranks)
    memory = rank_memory(QWEN3_8B, cluster, on_gpu=True, itemsize=2, max_length=1024, keeps_reference=False)
    gathered = 1_000_000_000 * 2 if stage == 3 else 0
    state = memory.gpu["weights"] + memory.gpu["gradients"] + memory.gpu["optimizer"]
    bucket = 200_000_000 * 4
    assert state == pytest.approx(bytes_per_parameter * QWEN3_8B.num_parameters + gathered + bucket, rel=1e-6)


def test_float32_on_one_core_takes_sixteen_bytes_per_parameter() -> None:
    memory = rank_memory(QWEN3_8B, resolved(), on_gpu=False, itemsize=4, max_length=1024, keeps_reference=False)
    state = memory.host["weights"] + memory.host["gradients"] + memory.host["optimizer"]
    assert state == 16 * QWEN3_8B.num_parameters
    twice = rank_memory(QWEN3_8B, resolved(), on_gpu=False, itemsize=4, max_length=1024, keeps_reference=True)
    assert twice.host["weights"] == 2 * memory.host["weights"]


@pytest.mark.parametrize(("stage", "stored"), [(0, 1), (1, 1), (2, 1), (3, 1 / 8)])
def test_a_rank_stores_as_much_of_the_reference_model_as_of_the_policy(stage: int, stored: float) -> None:
    cluster = resolved(zero_stage=stage, learner_ranks=8)
    without, with_reference = (
        rank_memory(QWEN3_8B, cluster, on_gpu=True, itemsize=2, max_length=1024, keeps_reference=keeps)
        for keeps in (False, True)
    )
    added = with_reference.gpu["weights"] - without.gpu["weights"]
    assert added == pytest.approx(stored * 2 * QWEN3_8B.num_parameters, rel=1e-6)


def test_lora_needs_little_beside_the_weights() -> None:
    """Rank 32 on each linear layer of 36: 2 x (4096 + 4096) + 2 x (4096 + 1024) + 3 x (4096 + 12288) a layer."""
    lora = LoraSpec(rank=32)
    trained = QWEN3_8B.count_trained(lora)
    assert trained == 36 * 32 * (16_384 + 10_240 + 49_152)
    memory = rank_memory(
        QWEN3_8B, resolved(), on_gpu=True, itemsize=2, max_length=1024, keeps_reference=True, lora=lora
    )
    assert memory.gpu["weights"] == 2 * (QWEN3_8B.num_parameters + trained)
    assert memory.gpu["gradients"] + memory.gpu["optimizer"] == (4 + 2 + 12 + 4) * trained
    assert memory.host["snapshot"] == (12 + 2) * trained
    fits = plan_placement(job({"algorithm": {"lora": {}}}), [EIGHT_GPUS], QWEN3_8B, 16_384)
    assert fits.problems == ()
    assert max(size.shm_bytes for size in fits.sizes) < GIB


def test_activation_checkpointing_keeps_one_layer_in_full() -> None:
    kept = activation_bytes(QWEN3_8B, 8192, 2, recomputed=True)
    assert kept < activation_bytes(QWEN3_8B, 8192, 2, recomputed=False) / 10
    assert kept > 36 * 8192 * 4096 * 2


def test_a_learner_that_is_too_large_for_its_gpu_gets_a_fix() -> None:
    (problem,) = plan(EIGHT_GPUS, model=QWEN3_8B).problems
    assert problem.code == "too_little_gpu_memory"
    assert "learner rank 0 needs" in problem.message
    assert "(optimizer 91.5 GiB, gradients" in problem.message
    assert problem.fix == "set cluster.zero_stage to auto and cluster.learner_ranks to auto"
    assert plan(EIGHT_GPUS, model=QWEN3_8B, learner_ranks=4, zero_stage=3).problems == ()


def test_an_engine_without_room_for_one_sequence_is_refused() -> None:
    small = replace(EIGHT_GPUS, gpu_memory_bytes=24 * GIB)
    assert "too_little_cache_memory" in codes(plan(small, model=QWEN3_8B, context=40_960, learner_ranks=7).problems)
    fits = plan(small, model=QWEN3_8B, context=40_960, engine_gpus=4, learner_ranks=4, zero_stage=3)
    assert "too_little_cache_memory" not in codes(fits.problems)


def test_memory_on_one_node_is_summed() -> None:
    node, model = replace(LAPTOP, memory_bytes=4 * GIB), replace(QWEN3_8B, num_parameters=10**8)
    (problem,) = plan(node, model=model, context=512, micro_batch_tokens=512).problems
    assert problem.code == "too_little_memory"
    assert "laptop, which has 4.0 GiB" in problem.message


def test_unknown_memory_is_not_checked() -> None:
    unknown = replace(EIGHT_GPUS, memory_bytes=None, gpu_memory_bytes=None)
    assert plan(unknown, model=QWEN3_8B).problems == ()


def test_the_copy_for_a_checkpoint_counts_on_the_node_of_each_rank() -> None:
    cluster = resolved(learner_ranks=4, zero_stage=1)
    number = QWEN3_8B.num_parameters

    def host(rank: int, *, on_gpu: bool) -> Mapping[str, int]:
        itemsize = 2 if on_gpu else 4
        return rank_memory(
            QWEN3_8B, cluster, on_gpu=on_gpu, itemsize=itemsize, max_length=1024, keeps_reference=False, rank=rank
        ).host

    assert host(0, on_gpu=True)["snapshot"] == 12 * number // 4 + 2 * number
    assert host(3, on_gpu=True)["snapshot"] == 12 * number // 4
    assert host(0, on_gpu=False)["snapshot"] == 12 * number // 4 + 4 * number


# -- shared engines ----------------------------------------------------------------------------------------------------


def adapting(**cluster: Any) -> JobSpec:
    return job({"algorithm": {"lora": {}}}, cluster={"share_engines": True} | cluster)


def test_a_shared_engine_is_planned_but_not_reserved_by_the_job() -> None:
    made = plan_placement(adapting(engines=2, learner_ranks=3), [replace(LAPTOP, cores=5)], None, 512)
    assert made.fits
    assert len(made.placement.bundles) == 5
    assert list(made.placement.reserved_bundles) == [2, 3, 4]
    assert not plan_placement(adapting(engines=2), [LAPTOP], None, 512).fits
    graded = plan_placement(adapting(), [LAPTOP], None, 512, learner=False)
    assert list(graded.placement.reserved_bundles) == [0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (job({"algorithm": {"lora": "off"}}, cluster={"share_engines": True}), "train all weights"),
        (
            job({"algorithm": {"lora": {}, "max_staleness": 0}}, cluster={"share_engines": True, "colocated": True}),
            "cannot sample for other jobs",
        ),
    ],
)
def test_engines_of_other_jobs_are_not_shared(spec: JobSpec, message: str) -> None:
    made = plan_placement(spec, [LAPTOP], None, 512)
    assert codes(made.problems) == ["engines_not_shared"]
    assert message in made.problems[0].message
    assert "share_engines to false" in made.problems[0].fix
