"""Spans of the driver: a trace for each step, made when the step is done from the times that it was measured with.

The spans of a step have links to the traced rollouts that it learned from; their traces go on for several steps. Each
try of a step that fails is a trace of its own, which has the error's type only: its message may hold texts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from opentelemetry.trace import Span

from agent_rft.actors.runtime.telemetry.tracing import Tracer
from agent_rft.events import VALIDATION, Evaluated, LearnerRestarted, LossEvaluated, PhaseBegan, StepDone
from agent_rft.run_events import RunEvent
from agent_rft.types import Group

PARTS = (
    ("sampling", "time_wait_s"),
    ("write ahead", "time_write_ahead_s"),
    ("learning", "time_learn_s"),
    ("weight sync", "sync_total_s"),
)
"""The parts of a step that follow each other from its start, and the metrics of their durations."""


class StepTraces:
    """A Sink, which gets the rollouts, too. Validations before the first step are traces of their own.

    `clock` returns Unix seconds.
    """

    def __init__(self, tracer: Tracer, clock: Callable[[], float] = time.time) -> None:
        self._tracer = tracer
        self._clock = clock
        self._under_way: tuple[int, float] | None = None  # a step, and its begin or that of its next try
        self._validation: tuple[float, float | None] | None = None  # its begin, and its end if it has ended
        self._traced: dict[str, list[str]] = {}

    def groups(self, name: str, groups: Sequence[Group]) -> None:
        traced = [r.trace_id for group in groups for r in group.rollouts if self._tracer.sampled(r.trace_id)]
        self._traced[name.partition("-")[0]] = traced

    def event(self, event: RunEvent) -> None:
        match event.event:
            case PhaseBegan(phase="training"):
                self._under_way = (event.step + 1, event.time)
            case PhaseBegan(phase="grading"):
                self._under_way = None
            case PhaseBegan(phase="validation"):
                self._validation = (event.time, None)
            case Evaluated(name=name, step=step) if name == VALIDATION and self._validation is not None:
                self._validation = (self._validation[0], event.time)
                if not step:
                    self._validated()
                    self._under_way = (1, event.time)
            case LossEvaluated() if self._validation is not None:
                self._validation = (self._validation[0], event.time)
            case StepDone() as done:
                self._step(event.time, done)
                self._under_way = (event.step + 1, event.time) if event.step < done.total_steps else None
            case LearnerRestarted(error_type=error_type) if self._under_way is not None:
                step, began = self._under_way
                self._failed(step, began, event.time, error_type)
                self._under_way = (step, event.time)

    def failed(self, error: Exception) -> None:
        """The run ends by this error, and with it the step that is under way, if one is."""
        if self._under_way is not None:
            self._failed(*self._under_way, self._clock(), type(error).__name__)
            self._under_way = None

    def close(self) -> None:
        self._tracer.flush()

    def _step(self, ended: float, done: StepDone) -> None:
        times = done.metrics
        start = ended - times.get("time_step_s", 0.0)
        rollouts = self._traced.pop("step", ())
        step = self._tracer.past("training step", start, ended, rollouts, agent_rft__step=done.step or 0)
        for name, metric in PARTS:
            if (took_s := times.get(metric, 0.0)) > 0:
                self._tracer.past(name, start, start + took_s, below=step)
                start += took_s
        self._validated(step)
        if (took_s := times.get("time_checkpoint_s", 0.0)) > 0:
            self._tracer.past("checkpoint", ended - took_s, ended, below=step)

    def _failed(self, step: int, began: float, ended: float, error_type: str) -> None:
        """A try of a step; the step may be done by the next one."""
        rollouts = self._traced.get("step", ())
        self._tracer.past("training step", began, ended, rollouts, error=error_type, agent_rft__step=step)

    def _validated(self, step: Span | None = None) -> None:
        begin, end = self._validation or (0.0, None)
        if end is not None:
            rollouts = self._traced.pop("validation", ())
            self._tracer.past("validation", begin, end, rollouts, below=step)
            self._validation = None
