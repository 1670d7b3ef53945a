"""Python graders on a node of their own, on a real Ray: where they run, what they know, what happens if they die."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import ray
from ray._common.utils import reset_ray_address
from ray._private.state import actors
from ray.cluster_utils import Cluster

from agent_rft.actors.grading.grader_pool import GraderPool, GraderPoolActor, GraderPoolClient
from agent_rft.actors.grading.python_nodes import PythonNodes, check_sandbox
from agent_rft.actors.grading.trial_slots import TrialSlots
from agent_rft.actors.runtime.grader_nodes import LABEL, PYTHON_GRADER
from agent_rft.actors.tools.dispatcher_actor import DispatcherActor, DispatcherClient
from agent_rft.errors import GraderFailed
from agent_rft.spec.graders import PythonGrader
from agent_rft.spec.job import Reinforcement
from agent_rft.spec.operator.operator_config import OperatorConfig
from tests.support.fakes_http import until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]
SECRET = "sk-very-secret-4711"
IN_RUNTIME_ENV = "sk-of-the-runtime-env-0815"
OPERATOR = OperatorConfig.model_validate(
    {"python_grader_nodes": True, "models": {"judge": {"base_url": "http://127.0.0.1:1/v1", "api_key": SECRET}}}
)
SOURCE = """
import time

def grade(sample, item):
    time.sleep(item.get("sleep_s", 0))
    return float(sample["output_text"] == item["answer"])
"""
GRADER = PythonGrader(type="python", source=SOURCE, timeout_s=120.0)
RIGHT = {"output_text": "42"}, {"answer": "42"}, "trace_1"
SLOW = {"output_text": "42"}, {"answer": "42", "sleep_s": 100}, "trace_2"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head without cores, and a node for python graders; the job has a variable in its runtime environment."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    reset_ray_address()  # Ray stores the address, and other tests would connect to it
    try:
        ray.init(cluster.address, log_to_driver=False, runtime_env={"env_vars": {"TOOL_KEY": IN_RUNTIME_ENV}})
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


async def test_a_check_waits_for_a_node_to_join(cluster: Cluster) -> None:
    hurried = PythonNodes(OPERATOR, restart_s=0.5)
    with pytest.raises(GraderFailed, match=r"did not answer within 0\.5 s"):
        await hurried.call("check")
    hurried.close()
    waiting = asyncio.create_task(check_sandbox(OPERATOR))
    await until(lambda: any(actor["State"] != "DEAD" for actor in actors().values()))
    cluster.add_node(num_cpus=0, resources={PYTHON_GRADER: 2}, labels={LABEL: "true"})
    await waiting


async def test_a_grader_runs_there_without_secrets_and_everything_else_elsewhere(cluster: Cluster) -> None:
    spec = reinforcement()
    pools = [GraderPoolClient(cast(Any, GraderPoolActor).remote(spec, OPERATOR)) for _ in range(3)]
    others = [DispatcherClient(cast(Any, DispatcherActor).remote(spec.tools, OPERATOR)) for _ in range(3)]
    assert (await pools[0].grade(*RIGHT)).value == 1.0
    assert (await pools[0].grade({"output_text": "41"}, {"answer": "42"}, "trace_1")).value == 0.0
    for client in (*pools, *others):
        await client.endpoint_stats()
    (there,) = [node["NodeID"] for node in ray.nodes() if node["Labels"].get(LABEL)]
    assert set(nodes_of("PythonGraderActor").values()) == {there}
    for kind in ("GraderPoolActor", "DispatcherActor"):
        assert there not in nodes_of(kind).values()

    (pid,) = nodes_of("PythonGraderActor")
    assert IN_RUNTIME_ENV not in str(psutil.Process(pid).environ())
    assert any(holds(pool, SECRET) for pool in nodes_of("GraderPoolActor"))  # the search finds what is there
    assert not holds(pid, SECRET)


async def test_its_death_fails_the_grades_in_flight_and_it_restarts(cluster: Cluster) -> None:
    pool = GraderPool.for_job(reinforcement(), OPERATOR)
    before = set(nodes_of("PythonGraderActor"))
    assert (await pool.grade(*RIGHT)).value == 1.0
    (pid,) = set(nodes_of("PythonGraderActor")) - before
    process = psutil.Process(pid)
    idle = len(process.children(recursive=True))
    slow = [asyncio.create_task(pool.grade(*SLOW)) for _ in range(2)]
    await until(lambda: len(process.children(recursive=True)) >= idle + 2)  # a process for each grade
    process.kill()
    for grade in slow:
        with pytest.raises(GraderFailed, match="the python grader process was lost") as lost:
            await grade
        assert lost.value.details["kind"] == "lost"
    assert (await pool.grade(*RIGHT)).value == 1.0
    await pool.close()


async def test_a_trial_leaves_nothing_behind_in_its_slot(cluster: Cluster) -> None:
    slots = TrialSlots(1)
    pool = GraderPool(GRADER, operator=OPERATOR, slot=partial(slots.hold_slot, "key"))
    before = set(nodes_of("PythonGraderActor"))
    grades = await asyncio.gather(*(pool.grade(*RIGHT) for _ in range(3)))
    assert [grade.value for grade in grades] == [1.0, 1.0, 1.0]
    (pid,) = set(nodes_of("PythonGraderActor")) - before
    slow = asyncio.create_task(pool.grade(*SLOW))
    await until(lambda: bool(psutil.Process(pid).children(recursive=True)))
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    assert slots.num_held == 0
    assert not psutil.Process(pid).children(recursive=True)
    await pool.close()
    await until(lambda: not psutil.pid_exists(pid))


def reinforcement() -> Reinforcement:
    tool = {"name": "search", "server_url": "https://tools.example.com", "headers": {"Authorization": SECRET}}
    return Reinforcement.model_validate({"grader": GRADER.model_dump(), "tools": [tool]})


def nodes_of(kind: str) -> dict[int, str]:
    """The nodes of the live actors of a class, by process."""
    found = [actor for actor in actors().values() if actor["ActorClassName"] == kind and actor["State"] == "ALIVE"]
    return {actor["Pid"]: actor["Address"]["NodeID"] for actor in found}


def holds(pid: int, text: str) -> bool:
    """Whether the text is in the private memory or the variables of a process."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            start, end = (int(part, 16) for part in span.split("-"))
            if not rights.startswith("rw"):
                continue
            with suppress(OSError):  # gone meanwhile, or a device's
                memory.seek(start)
                if text.encode() in memory.read(end - start):
                    return True
    return False
