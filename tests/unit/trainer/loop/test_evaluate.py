"""Evaluations: partial credit counts in the mean, and passes at or above the threshold."""

from __future__ import annotations

import pytest

from tests.support.builders import group, group_request
from trainer.loop.evaluate import summarize


@pytest.mark.parametrize(("threshold", "passed"), [(1.0, 1 / 4), (0.5, 3 / 4), (0.51, 2 / 4), (0.0, 1.0)])
def test_partial_credit_counts_in_the_mean_and_passes_at_the_threshold(threshold: float, passed: float) -> None:
    groups = [group(group_request(i, 2, "validation"), grades) for i, grades in enumerate([(0.0, 0.5), (0.75, 1.0)])]
    evaluation = summarize(groups, 2, threshold)
    assert (evaluation.grade, evaluation.pass_rate) == (0.5625, passed)
