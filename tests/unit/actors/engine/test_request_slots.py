"""Requests beyond the engine's slots wait in order, and their time counts from when they got a slot."""

from __future__ import annotations

from contextlib import ExitStack

from agent_rft.actors.engine.request_slots import RequestSlots


def test_the_first_waiting_request_takes_over_a_free_slot() -> None:
    now = 1.0
    slots = RequestSlots(1, clock=lambda: now)
    with ExitStack() as first:
        running = first.enter_context(slots.take("a"))
        now = 2.0
        with slots.take("b") as second, slots.take("c") as third:
            now = 3.0
            first.close()
            assert (running.started, second.started, third.started) == (1.0, 3.0, 2.0)
            assert slots.num_used == 1
        assert slots.num_used == 0


def test_an_engine_is_busy_while_a_request_runs() -> None:
    now = 0.0
    slots = RequestSlots(2, clock=lambda: now)
    with slots.take("a"):
        now = 2.0
        with slots.take("b"), slots.take("waits"):
            now = 3.0
            assert slots.busy_s == 3.0
        now = 4.0
    now = 10.0
    assert slots.busy_s == 4.0
    with slots.take("c"):
        now = 11.0
    assert slots.busy_s == 5.0


def test_a_slot_is_free_again_whichever_request_leaves_first() -> None:
    now = 1.0
    slots = RequestSlots(1, clock=lambda: now)
    with slots.take("a"):
        with slots.take("b") as left_while_waiting:
            now = 2.0
        with ExitStack() as late:
            waiting = late.enter_context(slots.take("c"))
            moved = late.pop_all()
        now = 3.0
    assert (left_while_waiting.started, waiting.started) == (1.0, 3.0)
    moved.close()
    assert slots.num_used == 0
    with slots.take("d"):
        assert slots.num_used == 1
