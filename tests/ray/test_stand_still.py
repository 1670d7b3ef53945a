"""Processes that stand still, on a cluster of its own: frozen is the first one of its kind that is found, and it must
be one that is at work."""

from __future__ import annotations

import asyncio
import re

import pytest

from actors.dispatcher_actor import watched_dispatchers
from actors.watchdog import LOOK_EVERY_S, SILENT_S, Watchdog, Watched
from tests.fakes_http import until
from tests.ray.fleet_cluster import CLUSTER_MARKS, Cluster, cluster, freeze, is_gone, job, tasks
from trainer.types import Group, Task

__all__ = ["cluster", "job", "tasks"]
pytestmark = CLUSTER_MARKS


async def waiting_for_a_tool(engine: Watched) -> None:
    """Until a rollout of this engine does."""
    while not any(doing.stage == "tool calls" for doing in await engine.pulse()):  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.1)


@pytest.mark.timeout(600)
async def test_processes_that_stand_still_are_named_within_a_minute_and_replaced(
    cluster: Cluster, tasks: list[Task]
) -> None:
    """The dispatcher, and while rollouts of both engines wait there the core of one of them."""
    cluster.events.clear()

    def watched() -> list[Watched]:
        return [*cluster.fleet.watched(), *watched_dispatchers(cluster.dispatchers), *cluster.learner.watched()]

    def said(start: str) -> list[str]:
        return [text for text in cluster.events if re.match(start, text)]

    def tell(level: str, text: str) -> None:
        cluster.events.append(text)

    silent = [rf"{name} has not answered for 30 s.* trace_" for name in (r"engine-\d", "the tool dispatcher")]

    async def sample_until_named() -> list[Group]:
        """On a quick machine one round could end before anything stands still."""
        groups: list[Group] = []
        while not all(map(said, silent)):
            groups += await cluster.sample(tasks * 4)
        return groups

    dog = Watchdog(watched, cluster.fleet.progress, tell, give_up_s=SILENT_S + 2 * LOOK_EVERY_S)
    sampling = asyncio.create_task(sample_until_named())
    await until(lambda: cluster.fleet.progress()[1] > 32, within_s=60)
    frozen = [freeze("ray::DispatcherActor")]
    async with asyncio.timeout(60):
        await asyncio.gather(*map(waiting_for_a_tool, cluster.fleet.watched()))
    await dog.look()
    await asyncio.sleep(1)
    frozen.append(freeze("EngineCore"))
    actor = frozen[-1].parent()
    watching = asyncio.create_task(dog.run())
    await until(lambda: all(map(said, silent)), within_s=60)
    groups = await sampling
    assert all(len(group.rollouts) >= 4 for group in groups)
    async with asyncio.timeout(180):
        await cluster.fleet.all_ready()
    assert len(said(r"engine-\d is being replaced: it has not answered")) == 1
    assert (await cluster.fleet.publish(4)).fenced == ()
    assert [stats["version"] for stats in await cluster.fleet.stats()] == [4, 4]
    await until(lambda: all(map(is_gone, [*frozen, actor])), within_s=20)
    watching.cancel()
