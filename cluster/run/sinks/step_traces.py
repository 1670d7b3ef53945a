"""OpenTelemetry spans of the driver: one trace per training step, created from measured times when the step is done.

The span of a step links to the traces of the rollouts that the step trained on, because a rollout may extend over
several steps. A failed attempt at a step is a separate trace. It contains the error's type but not the error's message,
which may contain user data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from opentelemetry.trace import Span

from agent_rft.actors.runtime.telemetry.tracing import Tracer
from agent_rft.events import VALIDATION, Evaluated, LearnerRestarted, LossEvaluated, PhaseStarted, StepDone
from agent_rft.stored_events import RunEvent
from agent_rft.types import Group

PARTS = (
    ("sampling", "time_wait_s"),
    ("write ahead", "time_write_ahead_s"),
    ("learning", "time_learn_s"),
    ("weight sync", "sync_total_s"),
)
"""Name and duration metric of each part of a step, in order."""


class StepTraces:
    """Sink that records one trace per training step, linked to the step's rollouts.

    A validation before the first step gets a trace of its own. `clock` returns Unix seconds.
    """

    def __init__(self, tracer: Tracer, clock: Callable[[], float] = time.time) -> None:
        self._tracer = tracer
        self._clock = clock
        self._current_step: tuple[int, float] | None = None  # step, and start of its current attempt
        self._validation: tuple[float, float | None] | None = None  # start, and end if it has ended
        self._traced: dict[str, list[str]] = {}

    def handle_groups(self, name: str, groups: Sequence[Group]) -> None:
        traced = [r.trace_id for group in groups for r in group.rollouts if self._tracer.find_sampled_id(r.trace_id)]
        self._traced[name.partition("-")[0]] = traced

    def handle_event(self, event: RunEvent) -> None:
        match event.event:
            case PhaseStarted(phase="training"):
                self._current_step = (event.step + 1, event.time)
            case PhaseStarted(phase="grading"):
                self._current_step = None
            case PhaseStarted(phase="validation"):
                self._validation = (event.time, None)
            case Evaluated(name=name, step=step) if name == VALIDATION and self._validation is not None:
                self._validation = (self._validation[0], event.time)
                if not step:
                    self._trace_validation()
                    self._current_step = (1, event.time)
            case LossEvaluated() if self._validation is not None:
                self._validation = (self._validation[0], event.time)
            case StepDone() as done:
                self._trace_step(event.time, done)
                self._current_step = (event.step + 1, event.time) if event.step < done.total_steps else None
            case LearnerRestarted(error_type=error_type) if self._current_step is not None:
                step, began = self._current_step
                self._trace_failure(step, began, event.time, error_type)
                self._current_step = (step, event.time)

    def record_failure(self, error: Exception) -> None:
        """Record the step in progress, if any, as failed with the error that ends the run."""
        if self._current_step is not None:
            self._trace_failure(*self._current_step, self._clock(), type(error).__name__)
            self._current_step = None

    def close(self) -> None:
        self._tracer.flush()

    def _trace_step(self, ended: float, done: StepDone) -> None:
        times = done.metrics
        start = ended - times.get("time_step_s", 0.0)
        rollouts = self._traced.pop("step", ())
        step = self._tracer.record_span("training step", start, ended, rollouts, agent_rft__step=done.step or 0)
        for name, metric in PARTS:
            if (took_s := times.get(metric, 0.0)) > 0:
                self._tracer.record_span(name, start, start + took_s, parent_span=step)
                start += took_s
        self._trace_validation(step)
        if (took_s := times.get("time_checkpoint_s", 0.0)) > 0:
            self._tracer.record_span("checkpoint", ended - took_s, ended, parent_span=step)

    def _trace_failure(self, step: int, began: float, ended: float, error_type: str) -> None:
        """Record a failed attempt at a step; the next attempt may succeed."""
        rollouts = self._traced.get("step", ())
        self._tracer.record_span("training step", began, ended, rollouts, error=error_type, agent_rft__step=step)

    def _trace_validation(self, step: Span | None = None) -> None:
        begin, end = self._validation or (0.0, None)
        if end is not None:
            rollouts = self._traced.pop("validation", ())
            self._tracer.record_span("validation", begin, end, rollouts, parent_span=step)
            self._validation = None
