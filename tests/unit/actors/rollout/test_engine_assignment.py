"""Which engine gets a rollout: the group's engine within bounds, otherwise the least loaded one."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from agent_rft.actors.rollout.engine_assignment import (
    MAX_EXTRA_ROLLOUTS,
    EngineLoad,
    GroupAffinity,
    GroupKey,
    find_idlest,
    group_key,
)
from agent_rft.actors.rollout.episode import RolloutRequest
from tests.support.builders import task

A, B = (0, "a"), (0, "b")
SLOTS = 8


def load(**rollouts: int) -> EngineLoad:
    """A load with so many rollouts of each row."""
    made = EngineLoad()
    for row, count in rollouts.items():
        for _ in range(count):
            made.add((0, row))
    return made


def spread(num_engines: int, groups: Mapping[GroupKey, int], max_num_seqs: int = 64) -> dict[GroupKey, set[int]]:
    """Assign the groups' rollouts in turns, and return the engines of each group."""
    loads, assign = [EngineLoad() for _ in range(num_engines)], GroupAffinity(max_num_seqs)
    engines: dict[GroupKey, set[int]] = {group: set() for group in groups}
    for turn in range(max(groups.values())):
        for group, size in groups.items():
            if turn < size:
                index = assign(loads, group)
                loads[index].add(group)
                engines[group].add(index)
                totals = [load.total for load in loads]
                assert max(totals) - min(totals) <= MAX_EXTRA_ROLLOUTS + 1
    return engines


def test_rollout_goes_to_the_engine_of_its_group() -> None:
    loads = [load(b=1), load(a=1, b=1)]
    assert GroupAffinity(SLOTS)(loads, A) == 1


@pytest.mark.parametrize(("more", "chosen"), [(1, 1), (2, 1), (3, 0)])
def test_engine_of_the_group_may_have_two_more_rollouts_than_the_least_loaded(more: int, chosen: int) -> None:
    loads = [load(b=2), load(a=1, b=1 + more)]
    assert GroupAffinity(SLOTS)(loads, A) == chosen


def test_full_engine_is_not_preferred() -> None:
    loads = [load(b=SLOTS - 1), load(a=SLOTS)]
    assert GroupAffinity(SLOTS)(loads, A) == 0
    assert GroupAffinity(SLOTS + 1)(loads, A) == 1


def test_rollouts_beyond_all_slots_go_to_the_least_loaded_engine() -> None:
    loads = [load(b=SLOTS + 1), load(a=SLOTS + 2)]
    assert GroupAffinity(SLOTS)(loads, A) == 0


def test_group_on_several_engines_goes_to_the_least_loaded_of_them() -> None:
    loads = [load(b=3), load(a=1, b=4), load(a=1, b=3)]
    assert GroupAffinity(SLOTS)(loads, A) == 2


def test_new_group_goes_to_the_least_loaded_engine() -> None:
    loads = [load(b=2), load(b=1)]
    assert GroupAffinity(SLOTS)(loads, A) == find_idlest(loads, A) == 1


def test_group_with_no_rollout_left_is_forgotten() -> None:
    here = load(a=2)
    here.remove(A)
    assert here.has_group(A) and here.total == 1
    here.remove(A)
    assert not here.has_group(A) and here.total == 0


def test_attempts_and_samples_of_a_row_are_one_group_and_epochs_are_not() -> None:
    first = group_key(RolloutRequest(task("a"), 0, sample=0, attempt=0, temperature=1.0))
    assert first == group_key(RolloutRequest(task("a"), 0, sample=5, attempt=3, temperature=1.0))
    assert first != group_key(RolloutRequest(task("a"), 1, sample=0, attempt=0, temperature=1.0))


@pytest.mark.parametrize(("num_engines", "num_groups"), [(2, 2), (2, 3), (2, 16), (4, 8), (8, 8)])
def test_groups_that_start_in_turns_have_one_engine_each(num_engines: int, num_groups: int) -> None:
    engines = spread(num_engines, {(0, str(index)): 8 for index in range(num_groups)})
    on_one = sum(len(used) == 1 for used in engines.values())
    assert on_one >= num_groups - num_groups % num_engines


def test_single_group_is_spread_over_few_engines() -> None:
    assert len(spread(8, {A: 8})[A]) == 3


def test_engines_stay_balanced_while_many_groups_come_and_go() -> None:
    chance, assign = random.Random(7), GroupAffinity(64)
    loads, in_flight = [EngineLoad() for _ in range(4)], list[tuple[int, GroupKey]]()
    for step in range(4_000):
        if in_flight and (len(in_flight) > 100 or chance.random() < 0.4):
            index, group = in_flight.pop(chance.randrange(len(in_flight)))
            loads[index].remove(group)
            continue
        group = 0, str(chance.randrange(step // 20, step // 20 + 6))
        index, least = assign(loads, group), min(load.total for load in loads)
        assert loads[index].total <= least + MAX_EXTRA_ROLLOUTS
        loads[index].add(group)
        in_flight.append((index, group))
