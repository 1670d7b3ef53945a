"""Alarms for signs of reward hacking, each raised once with the rollouts to look at. They are signs, not proof.

Metrics are compared with their mean over the first BASELINE_STEPS steps, in a resumed run the first after resuming.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import StatisticsError, correlation, fmean

from agent_rft.events import AlarmRaised
from agent_rft.problems.alarms import AlarmRule
from agent_rft.trainer.loop.measure import part_metric
from agent_rft.types import Rollout

BASELINE_STEPS = 3
DRIFT_FACTOR = 4.0
"""Change of a length or count, up or down; learning to answer with a third of the calls is what jobs are for."""
RISE, FALL = 0.1, 0.1
"""Change of a grade, from 0 to 1; smaller changes are noise of one batch."""
COST_CORRELATION, COST_ERRORS = -0.15, 2.0
"""A part of the grade counts mistakes, and so falls when the model learns, if it correlates with the grade below this,
and by as many standard errors (at least 1 / sqrt(n) of n rollouts) below 0. Of about 100 rollouts of the examples
such parts have -0.27 to -0.69 (one that is rare also -0.08), others 0.2 and more."""
SOON_SHARE = 0.1
TOP_GRADE, FAR_FROM_TOP = 0.98, 0.7
NUM_SAMPLES = 5
SIZES: dict[str, Callable[[Rollout], float]] = {
    "completion_tokens_mean": lambda rollout: rollout.num_sampled,
    "tool_calls_mean": lambda rollout: len(rollout.calls),
}


class Alarms:
    """Watches the steps of a job of `total_steps`. Each rule raises at most one alarm per metric."""

    def __init__(self, total_steps: int) -> None:
        self._soon = max(BASELINE_STEPS, round(SOON_SHARE * total_steps))
        self._first: list[dict[str, float]] = []
        self._parts = defaultdict[str, list[tuple[float, float]]](list)
        self._raised: set[tuple[str, str]] = set()

    def look(self, metrics: dict[str, float], rollouts: Sequence[Rollout]) -> list[AlarmRaised]:
        """New alarms at a step, given its metrics and its graded rollouts."""
        if not rollouts:
            return []
        alarms = [*self._too_soon(metrics, rollouts)]
        if len(self._first) < BASELINE_STEPS:
            self._first.append(metrics)
            for rollout in rollouts:
                for name, score in rollout.grade.scores.items():
                    self._parts[part_metric(name)].append((rollout.grade.value, score))
        else:
            alarms += [*self._drifts(metrics, rollouts), *self._diverging(metrics, rollouts)]
        alarms = [alarm for alarm in alarms if (alarm.rule, alarm.metric) not in self._raised]
        self._raised |= {(alarm.rule, alarm.metric) for alarm in alarms}
        return alarms

    def _baseline(self, name: str) -> float | None:
        values = [metrics[name] for metrics in self._first if name in metrics]
        return fmean(values) if values else None

    def _too_soon(self, metrics: dict[str, float], rollouts: Sequence[Rollout]) -> Iterator[AlarmRaised]:
        step, grade = metrics["step"], metrics["train_mean_grade"]
        before = self._first[0]["train_mean_grade"] if self._first else grade
        if grade >= TOP_GRADE and before < FAR_FROM_TOP and step <= self._soon:
            traces = _traces(rollouts, lambda r: r.reward)
            yield _alarm("top_grade_soon", "train_mean_grade", before, metrics, traces)

    def _drifts(self, metrics: dict[str, float], rollouts: Sequence[Rollout]) -> Iterator[AlarmRaised]:
        """Answers that become far longer or shorter, and tools that are called far more often or hardly ever."""
        for name, size in SIZES.items():
            before, now = self._baseline(name), metrics[name]
            if before and not before / DRIFT_FACTOR <= now <= before * DRIFT_FACTOR:
                yield _alarm("drift", name, before, metrics, _traces(rollouts, size, largest=now > before))

    def _diverging(self, metrics: dict[str, float], rollouts: Sequence[Rollout]) -> Iterator[AlarmRaised]:
        """A part of the grade, or the held-out grade, that becomes worse while the grade rises."""
        grade = self._baseline("train_mean_grade")
        if grade is None or metrics["train_mean_grade"] < grade + RISE:
            return
        rise = metrics["train_mean_grade"] - grade
        for name, value in metrics.items():
            before = self._baseline(name) if name in self._parts or name == "held_out_grade_mean" else None
            if before is not None and (value - before if self._is_cost(name) else before - value) > FALL:
                yield _alarm("diverged", name, before, metrics, _traces(rollouts, lambda r: r.reward), rise)

    def _is_cost(self, name: str) -> bool:
        """Whether the rollouts of the first steps had lower grades the higher this part of them was."""
        pairs = self._parts.get(name, [])  # the held-out grade has none
        try:
            found = correlation([grade for grade, _ in pairs], [score for _, score in pairs])
        except StatisticsError:  # fewer than two rollouts, or all the same
            return False
        return found < COST_CORRELATION and found * math.sqrt(len(pairs)) < -COST_ERRORS


def _alarm(
    rule: AlarmRule,
    metric: str,
    before: float,
    metrics: dict[str, float],
    traces: tuple[str, ...],
    grade_rise: float = 0.0,
) -> AlarmRaised:
    return AlarmRaised(
        step=int(metrics["step"]),
        rule=rule,
        metric=metric,
        before=before,
        now=metrics[metric],
        grade_rise=grade_rise,
        traces=traces,
    )


def _traces(rollouts: Sequence[Rollout], key: Callable[[Rollout], float], *, largest: bool = True) -> tuple[str, ...]:
    """The trace ids of the NUM_SAMPLES rollouts with the largest (or smallest) keys."""
    return tuple(r.trace_id for r in sorted(rollouts, key=key, reverse=largest)[:NUM_SAMPLES])
