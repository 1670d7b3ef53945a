"""Places on a real Ray: a job that waits says for what, and does not wait for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import ray

from cluster.placement import PLACEMENT_NEWS_S, Placement, Seats, plan_placement
from tests.fakes_http import until
from trainer.errors import InvalidJob
from trainer.spec import ClusterSpec

BOTH_CORES, _ = plan_placement(ClusterSpec(), {"CPU": 2})


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


async def test_a_job_waits_for_its_places_and_says_for_what(local_ray: None) -> None:
    first, news = Seats(BOTH_CORES), list[str]()
    await first.ready(news.append)
    assert news == []

    second = Seats(BOTH_CORES)
    waiting = asyncio.create_task(second.ready(news.append, timeout_s=60))
    await until(lambda: bool(news), within_s=3 * PLACEMENT_NEWS_S)
    assert news == ["waiting for resources: 2 cores, 0 GPUs are wanted, 0 cores, 0 GPUs are free"]
    first.release()
    await waiting

    third = Seats(BOTH_CORES)
    with pytest.raises(InvalidJob, match=r"after 0.1 s: 2 cores, 0 GPUs are wanted, 0 cores.* \[no_free_resources\]"):
        await third.ready(news.append, timeout_s=0.1)
    second.release()
    third.release()


async def test_what_no_single_node_holds_is_not_waited_for(local_ray: None) -> None:
    large = Placement(1, 7, 0, 1, 1, 0, "float32")
    async with asyncio.timeout(PLACEMENT_NEWS_S):
        with pytest.raises(InvalidJob, match="one engine or learner rank wants 7 cores, 0 GPUs, but no single node"):
            await Seats(large).ready(lambda news: None)
