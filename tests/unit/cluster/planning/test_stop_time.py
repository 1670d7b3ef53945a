"""Warnings about checkpoints whose writing takes longer than their interval."""

from __future__ import annotations

from agent_rft.cluster.planning.cluster_plan import interval_warnings
from agent_rft.spec.job import CheckpointInterval


def warnings(checkpoint_s: float, step_s: float | None, minutes: float | None, steps: int | None) -> list[str]:
    interval = CheckpointInterval(minutes=minutes, steps=steps)
    found = list(interval_warnings(interval, checkpoint_s, step_s))
    assert {warning.code for warning in found} <= {"slow_checkpoints"}
    return [f"{warning.field}: {warning.message}; {warning.fix}" for warning in found]


def test_interval_that_is_longer_than_a_write_gives_no_warning() -> None:
    assert warnings(600, 60, 15, 10) == []
    assert warnings(6_000, 60, None, None) == []
    assert warnings(6_000, None, None, 10) == [], "the time of a step is unknown"


def test_interval_in_minutes_grows_and_one_in_steps_is_kept() -> None:
    minutes, steps = warnings(1_200, 60, 15, 1)
    assert minutes == (
        "cluster.checkpoint_interval.minutes: writing a checkpoint takes about 1200 s, which is longer than the "
        "interval of 15 minutes, so checkpoints will be 40.0 minutes apart; use a faster disk for the run folder, or "
        "train with LoRA"
    )
    assert steps == (
        "cluster.checkpoint_interval.steps: writing a checkpoint takes about 1200 s, which is longer than a step "
        "(about 60 s), so training will wait for each checkpoint; set it to 40 or more, or to null"
    )
