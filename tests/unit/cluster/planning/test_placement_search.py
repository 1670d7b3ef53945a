"""The layout that `auto` chooses on GPUs: it uses them all, saves little, and keeps what is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from agent_rft.cluster.planning.cluster_plan import plan_cluster
from agent_rft.cluster.planning.layout import ClusterPlan, lay_out
from agent_rft.cluster.planning.memory_estimates import GIB
from agent_rft.cluster.planning.model_shape import CacheShape, ModelShape
from agent_rft.cluster.planning.placement import RECORDED, PlanRequest, RecordedLayout, total_resources
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.spec.model_options import LoraSpec
from tests.support.builders import job

CONTEXT = 16_384


def dense(hidden: int, layers: int, heads: int, inner: int, *, tied: bool = False) -> ModelShape:
    """A Qwen3 model with 8 key-value heads of 128."""
    of_layer = 2 * hidden * heads * 128 + 2 * hidden * 8 * 128 + 3 * hidden * inner
    total = (1 if tied else 2) * 151_936 * hidden + layers * of_layer
    return ModelShape(total, layers, hidden, heads, 8, 128, inner, 151_936)


def experts(hidden: int, layers: int, heads: int, inner: int) -> ModelShape:
    """A Qwen3 mixture of 128 experts, of which a token uses 8."""
    of_layer = 2 * hidden * heads * 128 + 2 * hidden * 4 * 128 + 128 * (hidden + 3 * hidden * inner)
    idle = layers * 120 * 3 * hidden * inner
    total = 2 * 151_936 * hidden + layers * of_layer
    return ModelShape(total, layers, hidden, heads, 4, 128, 8 * inner, 151_936, None, idle)


MODELS = {
    "0.6B": dense(1024, 28, 16, 3072, tied=True),
    "1.7B": dense(2048, 28, 16, 6144, tied=True),
    "4B": dense(2560, 36, 32, 9728, tied=True),
    "8B": dense(4096, 36, 32, 12_288),
    "14B": dense(5120, 40, 40, 17_408),
    "32B": dense(5120, 64, 64, 25_600),
    "30B-A3B": experts(2048, 48, 32, 768),
    "235B-A22B": experts(4096, 94, 64, 1536),
}


def nodes(count: int, gpus: int, gpu_gib: int, *, host_gib: int | None = None, cores: int | None = None) -> list[Node]:
    host = (host_gib or 128 * gpus) * GIB
    return [Node(f"n{i}", cores or 16 * gpus, gpus, host, gpu_gib * GIB) for i in range(count)]


CLUSTERS = {
    "1 x 24": nodes(1, 1, 24),
    "1 x 80": nodes(1, 1, 80, host_gib=256),
    "2 x 24": nodes(1, 2, 24),
    "2 x 80": nodes(1, 2, 80),
    "3 x 80": nodes(1, 3, 80),
    "4 x 24": nodes(1, 4, 24),
    "4 x 80": nodes(1, 4, 80),
    "8 x 24": nodes(1, 8, 24),
    "8 x 80": nodes(1, 8, 80),
    "8 x 80, little memory": nodes(1, 8, 80, host_gib=128),
    "2 nodes x 8 x 24": nodes(2, 8, 24),
    "2 nodes x 8 x 80": nodes(2, 8, 80),
    "4 nodes x 1 x 80": nodes(4, 1, 80),
    "mixed": [*nodes(1, 4, 24), replace(nodes(1, 4, 80)[0], name="large")],
}
PAIRS = [pytest.param(model, cluster, id=f"{model} on {cluster}") for model, cluster in product(MODELS, CLUSTERS)]


def request(model: str, cluster: str, lora: Any = "auto", **given: Any) -> PlanRequest:
    made = job({"algorithm": {"lora": lora}}, cluster=given)
    return PlanRequest(made, tuple(CLUSTERS[cluster]), MODELS[model], CONTEXT)


def combinations(model: str, cluster: str) -> Iterator[PlanRequest]:
    """One engine and any number of ranks, with each stage, offload and LoRA: more engines only take more memory."""
    total = sum(int(node.gpus) for node in CLUSTERS[cluster])
    offloads = ("none", "optimizer", "optimizer_and_activations")
    for gpus, ranks, stage, offload, lora in product(
        (1, 2, 4, 8), range(1, total + 1), range(4), offloads, ("off", {})
    ):
        if gpus + ranks <= total or total == 1:
            yield request(
                model,
                cluster,
                lora,
                engines=1,
                engine_gpus=gpus,
                learner_ranks=ranks,
                zero_stage=stage,
                offload=offload,
            )


def test_ranks_share_the_weights_of_the_reference_model_under_zero_3() -> None:
    """On 16 GPUs of 80 GiB, 32B parameters and a second copy of them fit only if the ranks share both."""
    algorithm, on = {"lora": "off", "kl_coef": 0.01}, tuple(CLUSTERS["2 nodes x 8 x 80"])
    shared, complete = (
        lay_out(PlanRequest(job({"algorithm": algorithm}, cluster=cluster), on, MODELS["32B"], CONTEXT))
        for cluster in ({"offload": "none"}, {"offload": "none", "zero_stage": 2})
    )
    assert shared.fits and shared.placement.zero_stage == 3
    assert {problem.code for problem in complete.problems} == {"too_little_gpu_memory"}


def refused() -> list[Any]:
    """The pairs that do not fit at the defaults; the clusters of 16 GPUs are for the night."""
    found = []
    for model, cluster in product(MODELS, CLUSTERS):
        if not lay_out(request(model, cluster)).fits:
            marks = [pytest.mark.nightly] if sum(node.gpus for node in CLUSTERS[cluster]) > 4 else []
            found.append(pytest.param(model, cluster, id=f"{model} on {cluster}", marks=marks))
    return found


def test_most_pairs_of_models_and_clusters_fit_at_the_defaults() -> None:
    fits = {(model, cluster) for model, cluster in product(MODELS, CLUSTERS) if lay_out(request(model, cluster)).fits}
    print(f"{len(fits)} of {len(MODELS) * len(CLUSTERS)} fit")
    assert len(fits) >= 80
    assert {("8B", "1 x 80"), ("30B-A3B", "1 x 80"), ("32B", "4 x 80"), ("235B-A22B", "2 nodes x 8 x 80")} <= fits


@pytest.mark.parametrize(("model", "cluster"), refused())
def test_where_the_defaults_do_not_fit_no_other_setting_does(model: str, cluster: str) -> None:
    assert not any(lay_out(made).fits for made in combinations(model, cluster))


@pytest.mark.parametrize(("model", "cluster"), PAIRS)
def test_a_gpu_is_unused_only_if_neither_another_engine_nor_another_rank_fits(model: str, cluster: str) -> None:
    plan = lay_out(request(model, cluster))
    total, placement = sum(int(node.gpus) for node in CLUSTERS[cluster]), plan.placement
    if not plan.fits or total_resources(placement)[0] == total:
        return
    for more in ({"engines": placement.engines + 1}, {"learner_ranks": placement.learner_ranks + 1}):
        given = {name: getattr(placement, name) for name in ("engines", "engine_gpus", "learner_ranks", "offload")}
        lora = "off" if placement.lora is None else {}
        assert not lay_out(request(model, cluster, lora, **given | more)).fits


@pytest.mark.parametrize(("model", "cluster"), PAIRS)
def test_nothing_is_saved_that_need_not_be(model: str, cluster: str) -> None:
    """The lowest stage; LoRA only if full training needs offload; offload only if LoRA does not fit without."""
    plan = lay_out(request(model, cluster))
    if not plan.fits:
        return
    placement = plan.placement
    division = {"engines": placement.engines, "engine_gpus": placement.engine_gpus}
    division |= {"learner_ranks": placement.learner_ranks, "offload": placement.offload}
    lora = "off" if placement.lora is None else {}
    for stage in range(placement.zero_stage):
        assert not lay_out(request(model, cluster, lora, **division, zero_stage=stage)).fits
    if placement.lora is not None:
        assert not lay_out(request(model, cluster, "off", offload="none")).fits
    if placement.offload != "none":
        assert not lay_out(request(model, cluster, {}, offload="none")).fits


def test_eight_gpus_are_halved_and_the_lowest_stage_is_taken() -> None:
    placement = lay_out(request("8B", "8 x 80")).placement
    assert (placement.engines, placement.engine_gpus, placement.learner_ranks) == (4, 1, 4)
    assert (placement.zero_stage, placement.offload, placement.lora) == (2, "none", None)
    assert placement.rank_cores == 16 and placement.engine_cores == 4


def test_an_odd_gpu_goes_to_the_engines() -> None:
    placement = lay_out(request("0.6B", "3 x 80")).placement
    assert (placement.engines, placement.learner_ranks) == (2, 1)


def test_settings_that_are_given_are_kept_and_the_others_are_chosen_around_them() -> None:
    plan = lay_out(request("8B", "8 x 80", engines=2, zero_stage=3))
    placement = plan.placement
    assert plan.fits and (placement.engines, placement.learner_ranks, placement.zero_stage) == (2, 6, 3)
    plan = lay_out(request("8B", "8 x 80", "off", learner_ranks=1))
    assert plan.fits and (placement := plan.placement).engines == 7
    assert placement.lora is None and placement.offload == "optimizer"
    fixed = lay_out(request("8B", "8 x 80", {"rank": 8}, max_num_seqs=7, engine_cores=2, rank_cores=3)).placement
    assert fixed.lora == LoraSpec(rank=8)
    assert (fixed.max_num_seqs, fixed.engine_cores, fixed.rank_cores) == (7, 2, 3)


def test_a_given_number_of_cores_that_leaves_too_few_for_the_others_still_fits() -> None:
    assert lay_out(request("8B", "8 x 80", engine_cores=24)).fits


def test_on_cpus_there_is_one_engine_and_one_rank_and_all_weights_are_trained() -> None:
    cpus = Node("laptop", cores=64, memory_bytes=64 * GIB)
    plan = lay_out(PlanRequest(job(), (cpus,), MODELS["0.6B"], 2048))
    values = {name: getattr(plan.placement, name) for name in RECORDED if name != "micro_batch_tokens"}
    assert values == {
        "engines": 1,
        "engine_cores": 1,
        "engine_gpus": 0,
        "learner_ranks": 1,
        "rank_cores": 1,
        "zero_stage": 0,
        "offload": "none",
        "max_num_seqs": 64,
    }
    assert plan.placement.lora is None


def test_a_supervised_job_and_one_that_grades_use_all_gpus() -> None:
    cluster = tuple(CLUSTERS["8 x 80"])
    supervised = lay_out(PlanRequest(job(method={"type": "supervised"}), cluster, MODELS["8B"], CONTEXT)).placement
    assert (supervised.engines, supervised.learner_ranks) == (0, 8)
    graded = lay_out(replace(request("8B", "8 x 80"), trains=False)).placement
    assert (graded.engines, graded.learner_ranks) == (8, 0)


def test_the_operator_limits_the_gpus_that_are_chosen() -> None:
    placement = lay_out(replace(request("0.6B", "8 x 80"), max_gpus=4)).placement
    assert total_resources(placement)[0] == 4


def test_weights_are_not_divided_among_ranks_if_layers_have_a_state() -> None:
    shape = replace(MODELS["14B"], layers_cache=CacheShape(10, 0, 0, 8, 2048, state_bytes=1 << 20))
    plan = lay_out(replace(request("14B", "8 x 80"), model=shape))
    assert plan.fits and plan.placement.zero_stage < 3


def test_a_model_without_adapters_is_offloaded_instead() -> None:
    plan = lay_out(replace(request("4B", "1 x 80"), can_use_lora=False))
    assert plan.fits and plan.placement.lora is None and plan.placement.offload == "optimizer"


def test_an_adapter_is_continued() -> None:
    continued = LoraSpec(rank=4, alpha=8.0)
    assert lay_out(replace(request("0.6B", "8 x 80"), adapter=continued)).placement.lora == continued


def test_shared_engines_have_fixed_values() -> None:
    placement = lay_out(request("8B", "8 x 80", share_engines=True)).placement
    assert (placement.engines, placement.engine_gpus, placement.engine_cores, placement.max_num_seqs) == (1, 1, 1, 64)
    assert placement.lora == LoraSpec()


def test_the_fewest_gpus_are_found() -> None:
    plan = lay_out(request("4B", "8 x 80"), fewest_gpus=True)
    assert plan.fits and total_resources(plan.placement)[0] == 1 and plan.placement.colocated


# -- reasons and records -----------------------------------------------------------------------------------------------


def reasons(plan: ClusterPlan) -> dict[str, str]:
    return {choice.setting: str(choice) for choice in plan.choices}


def test_the_plan_says_what_was_chosen_and_why() -> None:
    found = reasons(lay_out(request("8B", "2 x 80")))
    assert found["cluster"].startswith("cluster: auto is 1 engine of 1 GPU and 1 learner rank, ZeRO stage 0")
    lora = found["method.reinforcement.algorithm.lora"]
    assert "auto is rank 32 (training all 8.19B parameters needs" in lora
    assert "but a GPU has 80.0 GiB; to train all parameters anyway, set lora to off)" in lora
    assert "method.reinforcement.algorithm.lora" not in reasons(lay_out(request("0.6B", "2 x 80")))


def test_a_recorded_layout_is_kept_while_it_fits() -> None:
    first = lay_out(request("8B", "2 x 80", {}))
    recorded = RecordedLayout.from_placement(first.placement)
    larger = replace(request("8B", "8 x 80", {}), recorded_layout=recorded)
    assert RecordedLayout.from_placement(lay_out(larger).placement) == recorded
    smaller = replace(request("8B", "1 x 80", {}), recorded_layout=recorded)
    assert plan_cluster(smaller).fits and plan_cluster(smaller).placement.colocated


def test_gpus_that_other_jobs_hold_are_left_out_if_the_job_fits_on_the_others() -> None:
    (node,) = CLUSTERS["8 x 80"]
    half = replace(request("8B", "8 x 80"), nodes=(replace(node, held_gpus=4),))
    plan = lay_out(half)
    assert plan.fits and total_resources(plan.placement)[0] == 4
    assert "4 of 4 GPUs, other jobs hold 4" in reasons(plan)["cluster"]


def test_cores_that_other_jobs_hold_are_left_out_too() -> None:
    node = Node("n", cores=16, gpus=8, held_gpus=5, held_cores=10)
    plan = lay_out(PlanRequest(job(), (node,), None, CONTEXT))
    assert total_resources(plan.placement) == (3, 6)


@pytest.mark.parametrize("held", [7, 8])
def test_a_job_that_does_not_fit_on_free_gpus_is_planned_for_all_and_never_for_cpus(held: int) -> None:
    (node,) = CLUSTERS["8 x 80"]
    plan = lay_out(replace(request("32B", "8 x 80"), nodes=(replace(node, held_gpus=held),)))
    assert plan.fits and total_resources(plan.placement)[0] == 8
