"""Disk, memory and nodes in the check of a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent_rft.cluster.checks.disk_space import FreeSpace
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.errors import InvalidJob
from agent_rft.spec.node_groups import NodeGroup
from tests.support.fakes_http import LOCAL
from tests.support.job_case import GPU_NODE, HEAD, NODE, PLENTY, Case


async def test_a_full_disk_is_reported_with_numbers(case: Case) -> None:
    case.free = FreeSpace(disk_bytes=80 << 20, shm_bytes=PLENTY.shm_bytes)
    problem = await case.only_problem()
    assert (problem.code, problem.field) == ("disk_full", "--runs")
    assert "5 checkpoints may take 88 MiB" in problem.message
    case.operator = LOCAL.model_copy(update={"checkpoint_store": "memory://"})  # one more stays until it is copied
    problem = await case.only_problem()
    assert "6 checkpoints may take" in problem.message


async def test_a_run_that_only_grades_needs_room_neither_for_a_learner_nor_for_checkpoints(case: Case) -> None:
    case.nodes = [replace(NODE, cores=1)]
    case.free = FreeSpace(disk_bytes=90 << 20, shm_bytes=None)
    prepared = await case.prepare(learner=False)
    assert [place.role for place in prepared.cluster.assignments] == ["engine"]


@pytest.mark.parametrize(("shm_bytes", "message"), [(None, "no shared memory exists"), (1 << 20, "1 MiB is free")])
async def test_too_little_shared_memory_is_refused(case: Case, shm_bytes: int | None, message: str) -> None:
    case.free = FreeSpace(PLENTY.disk_bytes, shm_bytes)
    problem = await case.only_problem()
    assert problem.code == "small_shared_memory"
    assert message in problem.message
    assert "--shm-size=1g" in problem.fix


async def test_shared_memory_is_not_checked_with_several_nodes(case: Case) -> None:
    case.free = FreeSpace(PLENTY.disk_bytes, None)
    case.nodes.append(Node("b", cores=2.0))
    await case.prepare()


async def test_too_few_nodes_are_a_problem_unless_the_operator_lets_jobs_wait_for_more(case: Case) -> None:
    case.nodes = [Node("a", cores=1.0)]
    case.job = {"cluster": {"engine_gpus": 0}}
    assert (await case.only_problem()).code == "too_few_resources"
    case.operator = LOCAL.model_copy(update={"wait_for_nodes_s": 60.0})
    (warning,) = await case.warnings()
    assert warning.startswith("the job needs 2 cores")
    assert warning.endswith("but the cluster has 1; the job waits until nodes join")


async def test_shared_memory_is_not_checked_if_the_job_waits_for_the_nodes_of_its_engines(case: Case) -> None:
    case.nodes = [HEAD]
    case.job = {"cluster": {"engine_gpus": 0}}
    case.free = FreeSpace(PLENTY.disk_bytes, 1 << 20)
    case.operator = LOCAL.model_copy(update={"wait_for_nodes_s": 60.0})
    assert await case.warnings()


async def test_while_nodes_with_gpus_may_join_no_job_is_planned_for_cpus(case: Case) -> None:
    case.nodes = [HEAD, Node("graders", cores=4.0)]
    case.operator = LOCAL.model_copy(update={"wait_for_nodes_s": 60.0})
    problem = await case.only_problem()
    assert (problem.code, problem.field) == ("unknown_nodes", "cluster.engine_gpus")
    with pytest.raises(InvalidJob):
        await case.prepare(accepted=True)
    case.nodes.append(GPU_NODE)
    assert (await case.prepare()).placement.engine_gpus == 1


async def test_the_operators_list_stands_for_nodes_that_join_on_demand(case: Case) -> None:
    case.nodes = [HEAD]
    nodes = (NodeGroup(name="head", cores=0), NodeGroup(name="gpu", count=2, cores=32, gpus=4))
    case.operator = LOCAL.model_copy(update={"wait_for_nodes_s": 60.0, "nodes": nodes})
    prepared = await case.prepare()
    assert (prepared.placement.engines, prepared.placement.learner_ranks) == (4, 4)
    assert [node.name for node in prepared.cluster.nodes] == ["head", "gpu-0", "gpu-1"]
    case.job = {"cluster": {"engines": 8}}  # would wait forever
    assert (await case.only_problem()).code == "too_few_resources"


async def test_a_list_of_nodes_without_gpus_is_for_training_on_cpus(case: Case) -> None:
    case.nodes = [HEAD]
    nodes = (NodeGroup(name="worker", count=2, cores=1),)
    case.operator = LOCAL.model_copy(update={"wait_for_nodes_s": 60.0, "nodes": nodes})
    assert (await case.prepare()).placement.engine_gpus == 0


async def test_a_resumed_run_waits_for_the_nodes_of_its_layout(case: Case) -> None:
    case.nodes = [HEAD, GPU_NODE]
    began = case.began(await case.prepare())
    case.nodes = [HEAD]
    case.operator = LOCAL.model_copy(update={"wait_for_nodes_s": 60.0})
    resumed = await case.prepare(began=began)
    assert (resumed.placement.engines, resumed.placement.engine_gpus) == (2, 1)
    assert any("waits until nodes join" in warning for warning in resumed.warnings)


async def test_too_little_memory_is_refused(case: Case) -> None:
    case.nodes = [Node("a", cores=2.0, memory_bytes=2 << 30)]
    assert (await case.only_problem()).code == "too_little_memory"


async def test_a_runs_folder_that_is_not_writable_is_refused(case: Case) -> None:
    (case.folder / "runs").write_text("a file")
    problem = await case.only_problem()
    assert (problem.code, problem.field) == ("runs_not_writable", "--runs")
