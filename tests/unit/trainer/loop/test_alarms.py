"""Alarms for signs of reward hacking: once each, with the rollouts to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from agent_rft.events import AlarmRaised
from agent_rft.trainer.loop.alarms import RewardHackingAlarms
from agent_rft.types import Rollout
from tests.support.builders import group_request, rollout

ROLLOUTS: list[Rollout] = [rollout(group_request(), i, grade=i / 8, sampled=3 + i) for i in range(8)]
CALM = {"train_mean_grade": 0.5, "completion_tokens_mean": 50.0, "tool_calls_mean": 4.0}


def alarms_of(*steps: dict[str, float], total_steps: int = 100, calm_steps: int = 3) -> list[AlarmRaised]:
    watched = RewardHackingAlarms(total_steps)
    shown = [CALM] * calm_steps + list(steps)
    return [
        alarm
        for i, metrics in enumerate(shown, start=1)
        for alarm in watched.check_step(CALM | metrics | {"step": float(i)}, ROLLOUTS)
    ]


def alarms_while_the_grade_rises(
    part: str, kinds: Sequence[tuple[float, float]], before: float, now: float
) -> list[str]:
    """The alarms' metrics when a part's mean goes from `before` to `now`; `kinds` are rollouts' grades and parts."""
    (first, *_), name, watched = ROLLOUTS, f"grader/{part}/score_mean", RewardHackingAlarms(100)
    graded = [replace(first, grade=replace(first.grade, value=value, scores={part: score})) for value, score in kinds]
    for _ in range(3):
        watched.check_step(CALM | {name: before, "step": 1.0}, graded)
    return [a.metric for a in watched.check_step(CALM | {name: now, "train_mean_grade": 0.7, "step": 4.0}, graded)]


def test_learning_as_intended_raises_no_alarm() -> None:
    learned = {"train_mean_grade": 0.97, "completion_tokens_mean": 17.0, "tool_calls_mean": 1.4}
    assert alarms_of(learned, learned) == []


@pytest.mark.parametrize(
    ("metrics", "metric", "first"),
    [
        ({"completion_tokens_mean": 201.0}, "completion_tokens_mean", 7),
        ({"completion_tokens_mean": 12.0}, "completion_tokens_mean", 0),
        ({"tool_calls_mean": 0.0}, "tool_calls_mean", 0),
        ({"tool_calls_mean": 17.0}, "tool_calls_mean", 0),
    ],
)
def test_a_drift_raises_one_alarm_with_rollouts_to_look_at(metrics: dict[str, float], metric: str, first: int) -> None:
    (alarm,) = alarms_of(metrics, metrics, CALM, metrics)
    assert (alarm.rule, alarm.metric) == ("drift", metric)
    assert len(alarm.traces) == 5
    assert alarm.traces[0] == ROLLOUTS[first].trace_id


@pytest.mark.parametrize("name", ["held_out_grade_mean", "grader/style/score_mean"])
def test_a_grade_that_falls_while_the_trained_one_rises_raises_an_alarm(name: str) -> None:
    watched = RewardHackingAlarms(100)
    styled = [replace(r, grade=replace(r.grade, scores={"style": 0.8})) for r in ROLLOUTS]
    for _ in range(3):
        watched.check_step(CALM | {name: 0.8, "step": 1.0}, styled)
    assert watched.check_step(CALM | {name: 0.6, "step": 4.0}, styled) == []
    (alarm,) = watched.check_step(CALM | {name: 0.6, "train_mean_grade": 0.7, "step": 5.0}, styled)
    assert (alarm.rule, alarm.metric, alarm.step) == ("diverged", name, 5)
    assert (alarm.initial_value, alarm.value, alarm.grade_rise) == pytest.approx((0.8, 0.6, 0.2))
    assert alarm.traces[0] == ROLLOUTS[7].trace_id


@pytest.mark.parametrize(("mistakes", "alarms"), [(0.2, []), (0.7, []), (0.95, ["grader/mistakes/score_mean"])])
def test_a_part_that_counts_mistakes_may_fall_and_raises_an_alarm_if_it_rises(
    mistakes: float, alarms: list[str]
) -> None:
    kinds = [(r.grade.value, 1 - r.grade.value) for r in ROLLOUTS]
    assert alarms_while_the_grade_rises("mistakes", kinds, 0.8, mistakes) == alarms


def test_a_part_that_many_rollouts_lack_may_count_mistakes_too() -> None:
    """Answers that name nothing have neither a grade nor mistakes, so that the two correlate weakly."""
    kinds = [(0.0, 0.0)] * 24 + [(0.0, 1.0)] * 6 + [(1.0, 0.0)] * 10
    assert alarms_while_the_grade_rises("mistakes", kinds, 0.5, 0.2) == []


def test_a_part_that_hardly_depends_on_the_grade_must_not_fall() -> None:
    kinds = [(0.0, 1.0), (1.0, 0.0)] * 135 + [(0.0, 0.0), (1.0, 1.0)] * 115  # a correlation of -0.08
    assert alarms_while_the_grade_rises("style", kinds, 0.5, 0.2) == ["grader/style/score_mean"]


def test_a_part_that_is_the_same_in_all_rollouts_of_the_first_steps_must_not_fall() -> None:
    kinds = [(r.grade.value, 1.0) for r in ROLLOUTS]
    assert alarms_while_the_grade_rises("style", kinds, 1.0, 0.6) == ["grader/style/score_mean"]


def test_a_top_grade_is_suspicious_only_if_reached_early() -> None:
    top = {"train_mean_grade": 0.99}
    (alarm,) = alarms_of(top, calm_steps=2)
    assert alarm.rule == "early_top_grade"
    assert alarms_of(*[CALM] * 20, top) == []
