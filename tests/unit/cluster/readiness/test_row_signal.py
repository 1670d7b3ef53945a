"""Draws of rows: signal of groups of other sizes against all subsets, pass@k, shares."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from agent_rft.cluster.readiness.row_signal import (
    count_row_shares,
    estimate_group_signal,
    estimate_pass_at,
    measure_rows,
)
from agent_rft.types import Group
from tests.support.builders import group, group_request, untrained


def drawn(*grades: list[float | None]) -> list[Group]:
    return [group(group_request(number), row) for number, row in enumerate(grades)]


def test_rows_go_from_the_lowest_mean_reward_to_the_highest() -> None:
    rows = measure_rows(drawn([1.0, 1.0], [0.0, 1.0, None], [0.0, 0.0], [None]), pass_threshold=1.0)
    assert [(row.mean, row.best, row.passed, row.no_signal) for row in rows] == [
        (0.0, 0.0, 0, "all_wrong"),
        (0.5, 1.0, 1, None),
        (1.0, 1.0, 2, "all_right"),
    ]
    assert [row.deviation for row in rows] == [0.0, 0.5, 0.0]
    shares = count_row_shares(rows)
    assert (shares.all_wrong, shares.all_right, shares.equal) == (1 / 3, 1 / 3, 0.0)
    assert shares.signal == pytest.approx(1 / 3)


def test_the_signal_of_a_smaller_group_is_that_of_all_its_subsets() -> None:
    grades = [0.0, 0.0, 0.5, 1.0, 1.0, 1.0]
    subsets = list(combinations(grades, 3))
    expected = sum(len(set(subset)) > 1 for subset in subsets) / len(subsets)
    (found,) = estimate_group_signal(drawn(list(grades)), [3])
    assert found.low == found.high == pytest.approx(expected)


def test_a_larger_group_is_bounded_by_the_last_increase() -> None:
    (eight, sixteen) = estimate_group_signal(drawn([1.0] + [0.0] * 7, [0.0] * 8), [8, 16])
    assert (eight.low, eight.high) == (0.5, 0.5)  # of 7 of the first row's draws, 7 of 8 have the right one
    assert sixteen.low == 0.5
    assert sixteen.high == pytest.approx(0.5 + 8 * (0.5 - 0.5 * 7 / 8))


def test_the_true_share_of_a_larger_group_is_within_its_bounds() -> None:
    p, random = 0.1, Random(1)
    grades: list[list[float | None]] = [[float(random.random() < p) for _ in range(8)] for _ in range(400)]
    (found,) = estimate_group_signal(drawn(*grades), [16])
    assert found.low < 1 - p**16 - (1 - p) ** 16 < found.high


def test_pass_at_k_grows_with_k_and_has_an_interval() -> None:
    found = estimate_pass_at(measure_rows(drawn([1.0, 0.0, 0.0, 0.0], [0.0] * 4, [1.0] * 4), 1.0), samples=4)
    assert [entry.k for entry in found] == [1, 2, 4]
    assert [entry.share.mean for entry in found] == pytest.approx([1.25 / 3, 1.5 / 3, 2 / 3])
    assert all(entry.share.low < entry.share.mean < entry.share.high for entry in found)


def test_a_row_with_too_few_rollouts_has_no_pass_at_k() -> None:
    found = estimate_pass_at(measure_rows(drawn([1.0, None], [0.0, 0.0]), 1.0), samples=2)
    assert [(entry.k, entry.share.n) for entry in found] == [(1, 2), (2, 1)]


def test_nothing_graded_has_no_rows_and_no_signal() -> None:
    groups = drawn([None, None])
    assert measure_rows(groups, 1.0) == [] and estimate_group_signal(groups) == ()
    assert count_row_shares([]).signal == 0.0


def test_rollouts_that_are_not_trained_on_give_no_signal() -> None:
    (mixed, without) = drawn([0.0, 1.0, 1.0], [0.5, 0.5])
    mixed = replace(mixed, rollouts=(untrained(mixed.rollouts[0]), *mixed.rollouts[1:]))
    without = replace(without, rollouts=tuple(map(untrained, without.rollouts)))
    (row,) = measure_rows([mixed, without], pass_threshold=1.0)
    assert (row.mean, row.worst, row.no_signal) == (1.0, 1.0, "all_right")
    assert row.grade == pytest.approx(2 / 3) and (row.passed, row.graded) == (2, 3)
    assert [found.high for found in estimate_group_signal([mixed, without], [2])] == [0.0]


def test_penalties_that_training_takes_as_equal_are_no_signal() -> None:
    (made,) = drawn([1.0] * 8)
    rollouts = tuple(replace(r, reward=0.5 + i * 4e-4 / 8) for i, r in enumerate(made.rollouts))
    close = replace(made, rollouts=rollouts)
    assert measure_rows([close], pass_threshold=1.0)[0].no_signal is not None
    assert [(s.low, s.high) for s in estimate_group_signal([close], [4, 8, 32])] == [(0.0, 0.0)] * 3
    apart = replace(made, rollouts=tuple(replace(r, reward=0.5 + i * 2e-3) for i, r in enumerate(rollouts)))
    assert estimate_group_signal([apart], [4])[0].low == 1.0
