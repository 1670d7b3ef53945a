"""A local run is reachable from this machine only: Ray, our channels, and the ranks' rendezvous and groups."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack, chdir
from ipaddress import ip_address

import pytest

from agent_rft.actors.learner.learner_group import LearnerGroup
from agent_rft.actors.tools.dispatcher_actor import start_dispatchers
from agent_rft.cluster.ray_cluster.ray_session import ray_session
from agent_rft.trainer.learner.rank_config import LearnerConfig
from tests.support.fakes_http import LOCAL
from tests.support.paths import BASE
from tests.support.sockets import listening

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")
CONFIG = LearnerConfig(BASE, steps=10, learning_rate=1e-3, micro_batch_tokens=200)


@pytest.fixture(scope="module", autouse=True)
def local_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A run that starts in a folder with a user's own modules, which have the names of our packages."""
    folder = tmp_path_factory.mktemp("job")
    for name in ("trainer", "actors", "cluster", "serve"):
        (folder / f"{name}.py").write_text("raise ImportError('not ours')\n")
    with ExitStack() as session:
        with chdir(folder):
            session.enter_context(ray_session(None))
        yield
    gc.collect()  # Ray's process handles warn when they are collected: here the warnings are expected


async def test_a_user_s_own_modules_are_not_imported_in_place_of_ours() -> None:
    (dispatcher,) = start_dispatchers([], LOCAL, 1)
    assert await asyncio.wait_for(dispatcher.endpoint_stats.remote(), 60) == {}


async def test_a_local_run_listens_on_the_loopback_address_only() -> None:
    (dispatcher,) = start_dispatchers([], LOCAL, 1)
    channel = await asyncio.wait_for(dispatcher.get_channel_address.remote(), 60)  # it listens from now on
    ranks = await asyncio.wait_for(LearnerGroup.start(CONFIG, [{"num_cpus": 1}] * 2), 120)
    await asyncio.wait_for(ranks.build(CONFIG), 120)
    sockets = listening(os.getpid())
    await ranks.shutdown()
    names = {word for socket in sockets for word in socket.command}
    assert {"gcs_server", "raylet", "ray::RankProcess", "ray::DispatcherActor"} <= names
    assert [socket for socket in sockets if not socket.is_local] == []
    assert ip_address(channel.host).is_loopback
