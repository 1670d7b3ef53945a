"""Slots that keys share."""

from __future__ import annotations

import asyncio
from collections import Counter

from agent_rft.actors.runtime.fair_slots import FairSlots


async def test_a_key_that_comes_late_gets_its_share_before_thousands_that_wait() -> None:
    slots, ended = FairSlots(4), list[str]()

    async def use(key: str) -> None:
        async with slots.hold_slot(key):
            await asyncio.sleep(0)
            ended.append(key)

    many = [asyncio.create_task(use("many")) for _ in range(2_000)]
    await asyncio.sleep(0)
    assert slots.count_for("many") == (4, 1_996)
    few = [asyncio.create_task(use("few")) for _ in range(20)]
    await asyncio.gather(*few)
    assert Counter(ended)["many"] < 2 * 20
    await asyncio.gather(*many)
    assert (slots.num_held, slots.num_waiting) == (0, 0)


async def test_alone_a_key_has_all_slots() -> None:
    slots = FairSlots(3)
    async with slots.hold_slot("a"), slots.hold_slot("a"), slots.hold_slot("a"):
        assert slots.count_for("a") == (3, 0)
        assert slots.count_for("b") == (0, 0)


async def test_lowest_order_of_a_key_gets_the_next_slot() -> None:
    slots, started = FairSlots(1), list[int]()

    async def use(order: int) -> None:
        async with slots.hold_slot("job", order):
            started.append(order)
            await asyncio.sleep(0)

    await asyncio.gather(*map(use, [5, 7, 6, 2, 7, 1]))
    assert started == [5, 1, 2, 6, 7, 7]


async def test_a_cancelled_waiter_leaves_the_others_in_order() -> None:
    slots, started = FairSlots(1), list[int]()

    async def use(order: int) -> None:
        async with slots.hold_slot("job", order):
            started.append(order)

    async with slots.hold_slot("job"):
        waiting = [asyncio.create_task(use(order)) for order in (4, 1, 3, 2)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.wait(waiting[1:2])
        assert slots.count_for("job") == (1, 3)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert started == [2, 3, 4]
    assert (slots.num_held, slots.num_waiting) == (0, 0)
