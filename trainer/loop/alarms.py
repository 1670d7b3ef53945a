"""Reward hacking is watched, never claimed to be detected: what often comes with it is said once, with the samples to
look at.

Levels are compared with the mean of the first BASELINE_STEPS steps; a resumed run compares with the first after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from trainer.types import Rollout

BASELINE_STEPS = 3
DRIFT_FACTOR = 4.0
"""Of lengths and counts. An agent that learns to answer with a third of its calls is what the job is for."""
RISE, FALL = 0.1, 0.1
"""Of a grade, on its own scale from 0 to 1: smaller moves are noise of one batch."""
SOON_SHARE = 0.1
TOP_GRADE, FAR_FROM_TOP = 0.98, 0.7
NUM_SAMPLES = 5
SIZES: dict[str, tuple[str, Callable[[Rollout], float]]] = {
    "completion_tokens_mean": ("sampled tokens per rollout", lambda rollout: rollout.num_sampled),
    "tool_calls_mean": ("tool calls per rollout", lambda rollout: len(rollout.calls)),
}


@dataclass(frozen=True, slots=True)
class Alarm:
    """What looks suspicious, and the trace ids of rollouts that show it."""

    rule: str
    message: str
    traces: tuple[str, ...]


class Alarms:
    """Watches the steps of a job of `total_steps`. Each rule speaks once."""

    def __init__(self, total_steps: int) -> None:
        self._soon = max(BASELINE_STEPS, round(SOON_SHARE * total_steps))
        self._first: list[dict[str, float]] = []
        self._told: set[str] = set()

    def look(self, metrics: dict[str, float], rollouts: Sequence[Rollout]) -> list[Alarm]:
        """What is new at a step, given its metrics and its graded rollouts."""
        if not rollouts:
            return []
        alarms = [*self._too_soon(metrics, rollouts)]
        if len(self._first) < BASELINE_STEPS:
            self._first.append(metrics)
        else:
            alarms += [*self._drifts(metrics, rollouts), *self._graders_part(metrics, rollouts)]
        alarms = [alarm for alarm in alarms if alarm.rule not in self._told]
        self._told |= {alarm.rule for alarm in alarms}
        return alarms

    def _was(self, name: str) -> float | None:
        values = [metrics[name] for metrics in self._first if name in metrics]
        return fmean(values) if values else None

    def _too_soon(self, metrics: dict[str, float], rollouts: Sequence[Rollout]) -> Iterator[Alarm]:
        step, grade = metrics["step"], metrics["train_mean_grade"]
        began = self._first[0]["train_mean_grade"] if self._first else grade
        if grade >= TOP_GRADE and began < FAR_FROM_TOP and step <= self._soon:
            text = f"the mean grade went from {began:.2f} to {grade:.2f} in {step:.0f} steps: is the grader sound?"
            yield Alarm("top_grade_soon", text, _traces(rollouts, lambda r: r.reward))

    def _drifts(self, metrics: dict[str, float], rollouts: Sequence[Rollout]) -> Iterator[Alarm]:
        """Answers that grow or shrink out of all proportion, and tools that are called for ever or no more."""
        for name, (label, size) in SIZES.items():
            was, now = self._was(name), metrics[name]
            if was and not was / DRIFT_FACTOR <= now <= was * DRIFT_FACTOR:
                text = f"{label}: {now:.1f}, {was:.1f} at the start"
                yield Alarm(f"drift/{name}", text, _traces(rollouts, size, largest=now > was))

    def _graders_part(self, metrics: dict[str, float], rollouts: Sequence[Rollout]) -> Iterator[Alarm]:
        """A part of the grade, or the held-out grade, that falls while the whole rises."""
        was = self._was("train_mean_grade")
        if was is None or metrics["train_mean_grade"] < was + RISE:
            return
        rose = f"while the grade rose from {was:.2f} to {metrics['train_mean_grade']:.2f}"
        for name, value in metrics.items():
            is_part = name.startswith("grader/") and name.endswith("/score_mean")
            before = self._was(name) if is_part or name == "held_out_grade_mean" else None
            if before is not None and value < before - FALL:
                text = f"{name} fell from {before:.2f} to {value:.2f} {rose}"
                yield Alarm(f"parted/{name}", text, _traces(rollouts, lambda r: r.reward))


def _traces(rollouts: Sequence[Rollout], key: Callable[[Rollout], float], *, largest: bool = True) -> tuple[str, ...]:
    """The trace ids of the NUM_SAMPLES rollouts with the largest (or smallest) keys."""
    return tuple(r.trace_id for r in sorted(rollouts, key=key, reverse=largest)[:NUM_SAMPLES])
