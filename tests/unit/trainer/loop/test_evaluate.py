"""Evaluations: a grade in between counts as what it is, and passes from the threshold on."""

from __future__ import annotations

import pytest

from tests.support.fakes import rollout, task
from trainer.loop.evaluate import summarize
from trainer.types import Group, GroupRequest


@pytest.mark.parametrize(("threshold", "passed"), [(1.0, 1 / 4), (0.5, 3 / 4), (0.51, 2 / 4), (0.0, 1.0)])
def test_partial_credit_counts_in_the_mean_and_passes_from_the_threshold_on(threshold: float, passed: float) -> None:
    groups = []
    for index, grades in enumerate([(0.0, 0.5), (0.75, 1.0)]):
        request = GroupRequest(task(str(index)), 0, index, 2, "validation", 1.0)
        groups.append(Group(request, tuple(rollout(request, i, grade) for i, grade in enumerate(grades))))
    evaluation = summarize(groups, 2, threshold)
    assert (evaluation.grade, evaluation.pass_rate) == (0.5625, passed)
