"""When a checkpoint is due."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agent_rft.spec.job import CheckpointInterval
from tests.support.builders import job


@pytest.mark.parametrize(
    ("interval", "seconds", "steps", "due"),
    [
        ({}, 899.0, 10**6, False),
        ({}, 900.0, 0, True),
        ({"steps": 4}, 1.0, 3, False),
        ({"steps": 4}, 1.0, 4, True),
        ({"steps": 4}, 900.0, 3, True),
        ({"minutes": None, "steps": 4}, 1e9, 3, False),
        ({"minutes": None}, 1e9, 10**6, False),
        ({"minutes": 0.5}, 30.0, 0, True),
    ],
)
def test_a_checkpoint_is_due_once_either_has_passed(
    interval: dict[str, Any], seconds: float, steps: int, due: bool
) -> None:
    assert CheckpointInterval(**interval).is_due(seconds, steps) is due


@pytest.mark.parametrize("wrong", [{"minutes": 0}, {"minutes": 1e9}, {"steps": 0}, {"steps": 2**31}, {"hours": 1}])
def test_a_number_that_nobody_means_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CheckpointInterval(**wrong)


def test_it_is_a_setting_of_the_cluster_and_says_itself_in_words() -> None:
    assert str(job().cluster.checkpoint_interval) == "15 minutes"
    cluster = {"checkpoint_interval": {"minutes": 0.5, "steps": 2}}
    assert str(job(cluster=cluster).cluster.checkpoint_interval) == "0.5 minutes or 2 steps"
    assert str(CheckpointInterval(minutes=None)) == ""
