"""Jobs on simulated GPUs: Ray's resources without devices. Placement groups are created; nothing trains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest
import ray
from ray._common.utils import reset_ray_address
from ray.cluster_utils import Cluster

from agent_rft.cluster.checks.check_job import CheckedJob
from agent_rft.cluster.planning.cluster_plan import plan_cluster
from agent_rft.cluster.planning.placement import PlanRequest, total_resources
from agent_rft.cluster.ray_cluster.live_nodes import LiveNodeReader, read_live_nodes
from agent_rft.cluster.ray_cluster.reservation_lock import reservation_lock
from agent_rft.cluster.ray_cluster.reservations import Reservations
from agent_rft.cluster.run.reservation import reserve
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from tests.ray.job_actors import MARKS
from tests.support.builders import job, plan
from tests.support.fakes_http import until

pytestmark = MARKS


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """A head without cores, and two nodes of eight GPUs."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    reset_ray_address()  # Ray stores the address, and other tests would connect to it
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=16, num_gpus=8)
        ray.init(cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


async def reserved(run: str, max_gpus: int | None = None, **given: Any) -> tuple[Reservations, float]:
    """Plan a job on the nodes as they are, reserve its layout, and return its seats and its number of GPUs."""
    plan = plan_cluster(PlanRequest(job(cluster=given), tuple(read_live_nodes()), None, 1024, max_gpus=max_gpus))
    assert plan.fits
    seats = Reservations(plan.placement, run)
    placed = await seats.wait(print, timeout_s=30)
    assert placed == list(range(plan.placement.engines))
    return seats, total_resources(plan.placement)[0]


async def released(*jobs: Reservations) -> None:
    """Release the reservations, and wait until Ray counts their GPUs as free."""
    for seats in jobs:
        seats.release()
    await until(lambda: not any(node.held_gpus for node in read_live_nodes()), within_s=20)


async def test_a_job_gets_all_gpus_and_the_next_one_those_that_are_left(nodes: Cluster) -> None:
    alone, num_gpus = await reserved("alone")
    assert num_gpus == 16
    await released(alone)
    first, num_first = await reserved("first", max_gpus=6)
    assert sum(node.held_gpus for node in read_live_nodes()) == num_first == 6
    second, num_second = await reserved("second")
    assert num_second == 10
    await released(first, second)


async def test_an_engine_of_several_gpus_is_placed_next_to_ranks(nodes: Cluster) -> None:
    seats, num_gpus = await reserved("large", engine_gpus=8)
    assert num_gpus == 16
    await released(seats)


async def test_two_jobs_that_start_together_get_layouts_for_different_gpus(nodes: Cluster) -> None:
    """Both are laid out for six of the eight GPUs that are free."""
    other, _ = await reserved("other", max_gpus=8)
    request = PlanRequest(job(), tuple(read_live_nodes()), None, 1024, max_gpus=6)
    prepared = CheckedJob(request.job, plan(), plan_cluster(request), 1024, cast(Any, None), [], request=request)
    placements = dict.fromkeys(("first", "second"), prepared.placement)

    async def reserve_for(run: str) -> Reservations:
        def lay_out_again(changed: CheckedJob) -> None:
            placements[run] = changed.placement

        seats, placed = await reserve(
            prepared,
            lambda placement: Reservations(placement, run),
            LiveNodeReader(),
            DEFAULT_CONFIG,
            print,
            lay_out_again,
            reservation_lock,
        )
        assert placed == list(range(placements[run].engines))
        return seats

    both = await asyncio.gather(*map(reserve_for, placements))
    assert sorted(total_resources(placement)[0] for placement in placements.values()) == [2, 6]
    await released(other, *both)
