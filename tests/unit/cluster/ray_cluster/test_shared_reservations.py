"""Waiting for the resources of shared engines, with actors that only answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from agent_rft.cluster.ray_cluster.shared_reservations import SharedReservations
from agent_rft.errors import InvalidJob


class FakeShared:
    """A SharedConfig whose actor has its resources, or never gets them."""

    name = "engine-0"
    cores = 2
    engine = SimpleNamespace(gpus=1)

    def __init__(self, *, has_room: bool = True) -> None:
        self._has_room = has_room

    async def reserve_actor(self) -> None:
        if not self._has_room:
            await asyncio.Event().wait()


def seats(*engines: Any) -> SharedReservations:
    return SharedReservations(engines, patience_s=0.01)


async def test_the_first_engine_is_needed_and_others_join_later() -> None:
    told: list[str] = []
    assert await seats(FakeShared(), FakeShared(has_room=False), FakeShared()).wait(told.append) == [0, 2]
    assert told == []


async def test_without_room_for_the_first_the_job_ends_with_what_it_lacks() -> None:
    told: list[str] = []
    with pytest.raises(InvalidJob, match="no_free_resources") as raised:
        await seats(FakeShared(has_room=False), FakeShared()).wait(told.append, timeout_s=0.02)
    assert "engine-0 requires 2 cores, 1 GPUs" in told[0]
    assert "add nodes" in str(raised.value)


async def test_a_job_with_engines_of_its_own_waits_for_none() -> None:
    own = seats()
    assert await own.wait(lambda news: None) == []
    assert own.get(0) is None
