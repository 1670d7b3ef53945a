"""Requests beyond the engine's slots wait in order, and their time counts from when they got a slot."""

from __future__ import annotations

from contextlib import ExitStack

from agent_rft.actors.engine.request_slots import RequestSlots


def test_the_first_waiting_request_takes_over_a_free_slot() -> None:
    slots = RequestSlots(1)
    with ExitStack() as first:
        running = first.enter_context(slots.take("a"))
        with slots.take("b") as second, slots.take("c") as third:
            assert slots.waiting_ids == ["b", "c"]
            second_entered = second.started
            first.close()
            assert slots.waiting_ids == ["c"]
            assert second.started > second_entered
            assert third.started > running.started
        assert slots.waiting_ids == []


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
    slots = RequestSlots(1)
    with slots.take("a"):
        with slots.take("b"):
            assert slots.waiting_ids == ["b"]
        assert slots.waiting_ids == []
        with slots.take("c"):
            assert slots.waiting_ids == ["c"]
    with slots.take("d"):
        assert slots.waiting_ids == []
