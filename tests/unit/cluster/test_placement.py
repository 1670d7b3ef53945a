"""Placement: what `auto` means on cores and on GPUs, and what a cluster lacks, said with numbers."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.placement import Placement, num_nodes, plan_placement
from trainer.errors import Problem
from trainer.spec import ClusterSpec

TWO_CORES = {"CPU": 2.0, "memory": 1e10}
EIGHT_GPUS = {"CPU": 64.0, "GPU": 8.0}


def plan(resources: dict[str, float], **cluster: Any) -> tuple[Placement, list[Problem]]:
    return plan_placement(ClusterSpec.model_validate(cluster), resources)


def test_two_cores_hold_one_engine_and_one_learner_in_float32() -> None:
    placement, problems = plan(TWO_CORES)
    assert problems == []
    assert placement.bundles == [{"CPU": 1.0}, {"CPU": 1.0}]
    assert placement.dtype == "float32"


def test_gpus_are_used_where_there_are_some() -> None:
    placement, problems = plan(EIGHT_GPUS, engines=3, learner_ranks=2, engine_gpus=2, rank_cores=4)
    assert problems == []
    assert placement.bundles == [{"CPU": 1.0, "GPU": 2.0}] * 3 + [{"CPU": 4.0, "GPU": 1.0}] * 2
    assert placement.dtype == "bfloat16"
    assert plan(EIGHT_GPUS)[0].engine_gpus == 1


def test_a_job_may_stay_on_cores_beside_gpus() -> None:
    placement, problems = plan(EIGHT_GPUS, engine_gpus=0)
    assert problems == []
    assert placement.bundles == [{"CPU": 1.0}, {"CPU": 1.0}]
    assert placement.dtype == "float32"


@pytest.mark.parametrize(
    ("resources", "cluster", "field", "said", "remedy"),
    [
        (
            TWO_CORES,
            {"engines": 2, "engine_cores": 3, "learner_ranks": 2},
            "cluster",
            "wants 8 cores (engines 2 x 3, learner ranks 2 x 1), the cluster has 2",
            "engine_cores, rank_cores",
        ),
        (
            TWO_CORES,
            {"engine_gpus": 1},
            "cluster.engine_gpus",
            "wants 2 GPUs (engines 1 x 1, learner ranks 1 x 1), the cluster has 0",
            "set engine_gpus to 0 or auto",
        ),
        (EIGHT_GPUS, {"engines": 8, "engine_cores": 4}, "cluster", "wants 9 GPUs", "lower engines, learner_ranks"),
        (TWO_CORES, {"engine_cores": 5, "engine_gpus": 4}, "cluster", "wants 6 cores", "add nodes"),
    ],
)
def test_what_the_cluster_lacks_is_said_with_numbers_and_a_remedy(
    resources: dict[str, float], cluster: dict[str, Any], field: str, said: str, remedy: str
) -> None:
    first, *_ = plan(resources, **cluster)[1]
    assert (first.code, first.field) == ("too_few_resources", field)
    assert said in first.message
    assert remedy in first.remedy


def test_cores_and_gpus_are_told_together() -> None:
    _, problems = plan(TWO_CORES, engine_cores=5, engine_gpus=4)
    assert [problem.field for problem in problems] == ["cluster", "cluster.engine_gpus"]


@pytest.mark.parametrize(("resources", "engine_gpus"), [(TWO_CORES, "auto"), (EIGHT_GPUS, 0)])
def test_bfloat16_on_cores_is_refused_with_the_reason(resources: dict[str, float], engine_gpus: object) -> None:
    _, (problem,) = plan(resources, dtype="bfloat16", engine_gpus=engine_gpus)
    assert (problem.code, problem.field) == ("bfloat16_on_cpu", "cluster.dtype")
    assert "crashes" in problem.message
    assert "float32" in problem.remedy


def test_nodes_are_counted_by_rays_own_resources() -> None:
    assert num_nodes({"CPU": 2, "node:10.0.0.1": 1.0, "node:__internal_head__": 1.0}) == 1
    assert num_nodes({"node:10.0.0.1": 1.0, "node:10.0.0.2": 1.0, "node:__internal_head__": 1.0}) == 2
