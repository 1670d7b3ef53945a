"""The slots of trials: never more than the limit, fair between keys, bounded waits, and none is ever lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_rft.actors.grading.trial_slots import OneGradeGrader, SlottedGrader, TrialSlots
from agent_rft.actors.runtime.fair_slots import NoFreeSlot
from agent_rft.types import Grade


class Holder:
    """Tasks that each hold a slot until they are told to end; `order` has the keys in the order of their slots."""

    def __init__(self, slots: TrialSlots) -> None:
        self.slots = slots
        self.order: list[str] = []
        self._ends: list[asyncio.Event] = []

    async def hold(self, key: str) -> None:
        async with self.slots.hold_slot(key):
            self.order.append(key)
            self._ends.append(end := asyncio.Event())
            await end.wait()

    def start(self, *keys: str) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self.hold(key)) for key in keys]

    def end(self, number: int) -> None:
        """End the holder of the slot that was given out as this number."""
        self._ends[number].set()


async def settled() -> None:
    """Let all tasks run as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_key_takes_at_most_three_quarters_and_another_one_starts_at_once() -> None:
    holder = Holder(slots := TrialSlots(4))
    tasks = holder.start(*"aaaaaa")
    await settled()
    assert holder.order == ["a", "a", "a"] and slots.num_waiting == 3
    tasks += holder.start("b")
    await settled()
    assert holder.order == ["a", "a", "a", "b"]
    assert (slots.num_held, slots.num_waiting) == (4, 3)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert (slots.num_held, slots.num_waiting) == (0, 0)


async def test_a_free_slot_goes_to_the_key_with_the_fewest_and_then_in_turn() -> None:
    holder = Holder(TrialSlots(1))
    tasks = holder.start(*"aaabbc")
    await settled()
    for number in range(6):
        assert len(holder.order) == number + 1
        holder.end(number)
        await settled()
    await asyncio.gather(*tasks)
    assert "".join(holder.order) == "aabcab"


async def test_the_queue_is_bounded_for_a_key_and_in_all() -> None:
    holder = Holder(slots := TrialSlots(1, max_waiting=4))
    tasks = holder.start(*"aaaa")
    await settled()
    assert slots.num_waiting == 3
    with pytest.raises(NoFreeSlot, match="the queue is full"):
        await holder.hold("a")
    tasks += holder.start("b")
    await settled()
    assert slots.num_waiting == 4
    with pytest.raises(NoFreeSlot, match="the queue is full"):
        await holder.hold("c")
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_wait_ends_at_its_deadline_and_leaves_the_queue() -> None:
    holder = Holder(slots := TrialSlots(1, wait_s=0.01))
    (first,) = holder.start("a")
    await settled()
    assert slots.num_held == 1
    with pytest.raises(NoFreeSlot, match=r"no slot became free within 0\.01 s"):
        await holder.hold("b")
    assert (slots.num_held, slots.num_waiting) == (1, 0)
    holder.end(0)
    await first
    assert slots.num_held == 0


async def test_a_cancelled_waiter_passes_on_the_slot_that_it_was_just_given() -> None:
    holder = Holder(slots := TrialSlots(1))
    async with slots.hold_slot("a"):
        second, third = holder.start("b", "c")
        await settled()
    second.cancel()  # the slot is its own, but it has not run since
    await settled()
    assert holder.order == ["c"]
    third.cancel()
    await asyncio.wait([second, third])
    assert (slots.num_held, slots.num_waiting) == (0, 0)


class Fake:
    """A grader that notes how many grades and open graders there are at a time."""

    open = most_open = closed = 0

    def __init__(self) -> None:
        type(self).open += 1
        type(self).most_open = max(self.open, self.most_open)

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        await asyncio.sleep(0)
        return Grade(1.0)

    async def close(self) -> None:
        await asyncio.sleep(0)
        type(self).open -= 1


async def test_a_grader_of_one_grade_is_closed_before_its_slot_is_free() -> None:
    slots = TrialSlots(2)
    grader = OneGradeGrader(Fake, lambda: slots.hold_slot("a"))
    await asyncio.gather(*(grader.grade({}, {}, "t") for _ in range(10)))
    assert (Fake.open, Fake.most_open, slots.num_held) == (0, 2, 0)


async def test_a_slot_is_not_free_before_its_grader_is_closed_however_often_that_is_cancelled() -> None:
    slots, closing = TrialSlots(1), asyncio.Event()

    class Slow(Fake):
        async def close(self) -> None:
            await closing.wait()

    grading = asyncio.create_task(OneGradeGrader(Slow, lambda: slots.hold_slot("a")).grade({}, {}, "t"))
    for _ in range(3):
        await settled()
        grading.cancel()
    await settled()
    assert slots.num_held == 1 and not grading.done()
    closing.set()
    await asyncio.wait([grading])
    assert grading.cancelled() and slots.num_held == 0


async def test_an_endpoints_grader_waits_for_each_grade() -> None:
    slots = TrialSlots(1, max_waiting=1)
    grader = SlottedGrader(Fake(), lambda: slots.hold_slot("a"))
    outcomes = await asyncio.gather(*(grader.grade({}, {}, "t") for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Grade, Grade, NoFreeSlot]
    await grader.close()
