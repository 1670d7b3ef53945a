"""Slots that keys share."""

from __future__ import annotations

import asyncio
from collections import Counter

from actors.runtime.fair_slots import FairSlots


async def test_a_key_that_comes_late_gets_its_share_before_thousands_that_wait() -> None:
    slots, ended = FairSlots(4), list[str]()

    async def use(key: str) -> None:
        async with slots.slot(key):
            await asyncio.sleep(0)
            ended.append(key)

    many = [asyncio.create_task(use("many")) for _ in range(2_000)]
    await asyncio.sleep(0)
    assert slots.of("many") == (4, 1_996)
    few = [asyncio.create_task(use("few")) for _ in range(20)]
    await asyncio.gather(*few)
    assert Counter(ended)["many"] < 2 * 20
    await asyncio.gather(*many)
    assert (slots.num_held, slots.num_waiting) == (0, 0)


async def test_alone_a_key_has_all_slots() -> None:
    slots = FairSlots(3)
    async with slots.slot("a"), slots.slot("a"), slots.slot("a"):
        assert slots.of("a") == (3, 0)
        assert slots.of("b") == (0, 0)
