"""Placement on a real Ray: a job that waits for resources says which, and does not wait forever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
import ray

from agent_rft.cluster.planning.placement import Placement
from agent_rft.cluster.ray_cluster.reservations import REPORT_INTERVAL_S, Reservations
from agent_rft.errors import InvalidJob
from tests.support.fakes_http import until

BOTH_CORES = Placement(
    1, 1, 0, 1, 1, 0, "float32", max_num_seqs=64, zero_stage=0, offload="none", micro_batch_tokens=8192
)


class Visible:
    def gpus(self) -> list[str]:
        return [str(number) for number in ray.get_gpu_ids()]


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    ray.init("local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


async def test_a_job_waits_for_its_resources_and_reports_which(local_ray: None) -> None:
    first, news = Reservations(BOTH_CORES, "first"), list[str]()
    assert await first.wait(news.append) == [0]
    assert news == []

    second = Reservations(BOTH_CORES, "second")
    waiting = asyncio.create_task(second.wait(news.append, timeout_s=60))
    await until(lambda: bool(news), within_s=3 * REPORT_INTERVAL_S)
    missing = "2 cores, 0 GPUs required, 0 cores, 1 GPUs free; not placed: engine 0, learner rank 0"
    assert news == [f"{missing}; in use by the run first"]
    first.release()
    await waiting

    third = Reservations(BOTH_CORES, "third")
    with pytest.raises(InvalidJob, match=r"after 0.1 s: 2 cores, 0 GPUs required, 0 cores.* \[no_free_resources\]"):
        await third.wait(news.append, timeout_s=0.1)
    second.release()
    third.release()


async def test_an_engine_without_resources_joins_when_another_job_ends(local_ray: None) -> None:
    small = Reservations(replace(BOTH_CORES, learner_ranks=0), "small")
    await small.wait(print)
    large = Reservations(replace(BOTH_CORES, engines=2, learner_ranks=0), "large")
    assert await large.wait(print) == [0]
    joining = asyncio.create_task(large.wait_for_engine(1))
    assert not (await asyncio.wait({joining}, timeout=0.1))[0]
    small.release()
    await asyncio.wait_for(joining, 30)
    large.release()


async def test_an_engine_and_a_rank_that_share_a_gpu_see_the_same_one(local_ray: None) -> None:
    seats = Reservations(replace(BOTH_CORES, engine_gpus=1, rank_gpus=1, colocated=True), "shared")
    await seats.wait(print)
    actor = ray.remote(Visible)
    both = [actor.options(**options).remote() for options in (seats.engine_options(0), seats.rank_options(0))]
    assert await asyncio.gather(*(each.gpus.remote() for each in both)) == [["0"], ["0"]]
    seats.release()


async def test_a_job_does_not_wait_for_resources_beyond_any_single_node(local_ray: None) -> None:
    large = Reservations(replace(BOTH_CORES, engine_cores=7), "large")
    async with asyncio.timeout(REPORT_INTERVAL_S):
        with pytest.raises(InvalidJob, match="engine 0 requires 7 cores, 0 GPUs, more than any node has"):
            await large.wait(print)
    large.release()


async def test_in_an_autoscaled_cluster_a_job_waits_and_reports_the_node_that_must_join(local_ray: None) -> None:
    large, news = Reservations(replace(BOTH_CORES, engine_cores=7), "large"), list[str]()
    with pytest.raises(
        InvalidJob, match=r"after 0.2 s: 8 cores.*engine 0 requires 7 cores.*, so a larger node must join"
    ):
        await large.wait(news.append, timeout_s=0.1, wait_for_nodes_s=0.2)
    large.release()
