"""The budget of engine replacements: its limit, what renews it, and when an engine is reported as unstable."""

from __future__ import annotations

import pytest

from agent_rft.actors.rollout.engine_replacement import ReplacementBudget
from agent_rft.errors import TrainingHalted
from agent_rft.events import EngineUnstable, Event

BOTH = ["engine-0", "engine-1"]


class Budget:
    """A budget of two engines, and its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.budget = ReplacementBudget(2, self.events.append)

    def count(self, engine: str, times: int = 1) -> None:
        for _ in range(times):
            self.budget.count(engine, "it did not answer")

    @property
    def unstable(self) -> list[tuple[str, int]]:
        return [(event.engine, event.times) for event in self.events if isinstance(event, EngineUnstable)]


def test_limit_is_three_replacements_per_engine_of_the_fleet() -> None:
    made = Budget()
    made.count("engine-0", 6)
    made.budget.check("engine-0", "it did not answer")
    made.count("engine-1")
    message = (
        "engine-1 cannot be replaced again: engines were replaced 7 times since the last weight update, but only 6 "
        "replacements are allowed; the last reason: GPU error on /dev/x"
    )
    with pytest.raises(TrainingHalted) as error:
        made.budget.check("engine-1", "GPU error on /dev/x")
    assert error.value.message == message and "/dev/x" not in error.value.public_message


def test_newer_weights_renew_the_budget_and_not_the_total() -> None:
    made = Budget()
    made.count("engine-0", 7)
    made.budget.reset(1, BOTH)
    made.budget.check("engine-0", "")
    made.count("engine-0", 7)
    assert made.budget.total == 14
    with pytest.raises(TrainingHalted):
        made.budget.check("engine-0", "")


def test_the_same_weights_again_renew_nothing() -> None:
    made = Budget()
    made.budget.reset(1, BOTH)
    made.count("engine-0", 7)
    made.budget.reset(1, BOTH)
    with pytest.raises(TrainingHalted):
        made.budget.check("engine-0", "")


def test_weights_that_no_engine_took_renew_nothing_until_one_takes_them() -> None:
    made = Budget()
    made.count("engine-0", 7)
    made.budget.reset(1, [])
    with pytest.raises(TrainingHalted):
        made.budget.check("engine-0", "")
    made.budget.reset(1, ["engine-1"])
    made.budget.check("engine-0", "")


def test_engine_that_dies_after_each_update_is_unstable() -> None:
    made = Budget()
    for version in range(1, 8):
        made.budget.reset(version, BOTH)
        made.count("engine-0")
    assert made.unstable == [("engine-0", 3), ("engine-0", 6)]


def test_engine_that_misses_updates_while_it_starts_is_still_unstable() -> None:
    made = Budget()
    for version in range(1, 10):
        joined = version % 3 == 0
        made.budget.reset(version, BOTH if joined else ["engine-1"])
        if joined:
            made.count("engine-0")
    assert made.unstable == [("engine-0", 3)]


def test_engine_that_works_from_one_update_to_the_next_is_stable() -> None:
    made = Budget()
    for version in range(1, 20):
        made.budget.reset(version, BOTH)
        if version % 2:
            made.count("engine-0")
    assert made.unstable == []
