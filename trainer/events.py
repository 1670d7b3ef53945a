"""The events of a run: one frozen, versioned type per kind. Control flow depends on types, never on messages.

Events are emitted once and read by all sinks: live view, run folder, API, Prometheus, third-party sinks. Views make
the sentences. `kind` and `VERSION` are stored: a field with a default may be added, other changes raise the version.

    stream.emit(EngineReplaced(engine="engine-0", reason="it did not answer"))
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from trainer.types import Evaluation, Purpose

Level = Literal["info", "warn", "error"]
Phase = Literal["resources", "actors", "grading", "training", "validation", "checkpoint"]
Outcome = Literal["done", "stopped", "failed"]
VALIDATION = "validation"
"""The `name` of an Evaluated event of the validation file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base class. `step` is the step of the event; for None the stream fills in the last step that is done."""

    VERSION: ClassVar[int] = 1
    LEVEL: ClassVar[Level] = "info"

    step: int | None = None

    @property
    def kind(self) -> str:
        return kind_of(type(self))

    @property
    def level(self) -> Level:
        return self.LEVEL

    @property
    def quiet(self) -> bool:
        """Whether the event is stored but not shown individually, since there may be thousands."""
        return False


# -- progress of a run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(Event):
    method: str
    total_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResumed(Event):
    """Training resumed from the checkpoint of `step`."""

    total_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBegan(Event):
    """A phase started. `detail`: the missing resources, the actors that start, or the file that is graded."""

    phase: Phase
    detail: str = ""

    @property
    def quiet(self) -> bool:
        return self.phase in ("validation", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Event):
    """A training step is done. `metrics` has the names of `trainer.metrics`, when read back only its finite values."""

    total_steps: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated(Event):
    """A whole file was graded. `name` is VALIDATION, `test-before`, `test-after` or `eval-<file>`."""

    name: str
    evaluation: Evaluation
    training_groups_in_flight: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LossEvaluated(Event):
    """A supervised job evaluated its validation file; `loss` is the mean cross-entropy in nats."""

    loss: float
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    path: str
    num_bytes: int
    valid_reward: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded(Event):
    outcome: Outcome
    error: str = ""

    @property
    def level(self) -> Level:
        return "error" if self.outcome == "failed" else "info"


# -- learning ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSkipped(Event):
    """An update was skipped because its gradient was not finite."""

    LEVEL: ClassVar[Level] = "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStarved(Event):
    """No group of a batch had a signal to learn from, for the `times`-th time in a row.

    `without_signal` counts groups by kind, `discarded` counts rollouts by reason.
    """

    LEVEL: ClassVar[Level] = "warn"

    times: int
    num_lost: int
    without_signal: dict[str, float] = field(default_factory=dict)
    discarded: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLearnerGap(Event):
    """Engine and learner differ on the same weights; `gap_nats` is the mean absolute log-probability difference."""

    LEVEL: ClassVar[Level] = "warn"

    gap_nats: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRaised(Event):
    """A sign of reward hacking: `metric` changed from `before` to `now`. `traces` are ids of rollouts to look at.

    The rules are `top_grade_soon`, `drift` and `diverged` (it fell while the mean grade rose by `grade_rise`).
    """

    LEVEL: ClassVar[Level] = "warn"

    rule: Literal["top_grade_soon", "drift", "diverged"]
    metric: str
    before: float
    now: float
    grade_rise: float = 0.0
    traces: tuple[str, ...] = ()


# -- rollouts and endpoints --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDiscarded(Event):
    """One attempt at a rollout ended without a grade. `endpoint` is the endpoint that failed, or empty."""

    LEVEL: ClassVar[Level] = "warn"

    trace_id: str
    row_id: str
    sample: int
    purpose: Purpose
    reason: str
    cause: str
    endpoint: str = ""

    @property
    def quiet(self) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointDown(Event):
    """Most of the last rollouts were discarded; new ones are held back, except for probes.

    `endpoint` failed most often, `num_by_endpoint` times. If no endpoint failed, it is the most frequent reason.
    """

    LEVEL: ClassVar[Level] = "warn"

    endpoint: str
    num_by_endpoint: int
    num_failed: int
    num_rollouts: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointUp(Event):
    """A probe was graded, so rollouts resume."""

    endpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionProblem(Event):
    """Tool sessions of rollouts cannot be ended or may still be open."""

    LEVEL: ClassVar[Level] = "warn"

    detail: str


# -- the fleet and the other actors ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWaiting(Event):
    """An engine waits for resources."""

    LEVEL: ClassVar[Level] = "warn"

    engine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReplaced(Event):
    """An engine was stopped and a replacement starts."""

    LEVEL: ClassVar[Level] = "warn"

    engine: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRestarted(Event):
    """A replacement was lost while it started and starts again."""

    LEVEL: ClassVar[Level] = "warn"

    engine: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJoined(Event):
    """An engine with the newest weights is ready for rollouts."""

    engine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSilent(Event):
    """An actor does not answer. `work` is its last known work, or if `waiting` the rollouts that wait for it."""

    LEVEL: ClassVar[Level] = "warn"

    actor: str
    silent_s: float
    work: tuple[str, ...] = ()
    waiting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorAnswered(Event):
    """An actor answers again after `silent_s`."""

    actor: str
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkStalled(Event):
    """An actor answers, but has been in one stage of its own work for too long."""

    LEVEL: ClassVar[Level] = "warn"

    actor: str
    stage: str
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsStalled(Event):
    """No rollout has ended for `idle_s`; `longest` lists those that have been in flight longest."""

    LEVEL: ClassVar[Level] = "warn"

    idle_s: float
    num_in_flight: int
    longest: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentFailed(Event):
    """A part of the driver failed because of a bug; the run continues without it."""

    LEVEL: ClassVar[Level] = "error"

    component: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCutOff(Event):
    """A sink raised, hung or fell behind, and gets no more events."""

    LEVEL: ClassVar[Level] = "warn"

    sink: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(Event):
    """Advice from the checks before the start; for people only."""

    LEVEL: ClassVar[Level] = "warn"

    text: str


def kind_of(cls: type[Event]) -> str:
    """The kind of an event type: `StepDone` -> `step_done`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


KINDS: dict[str, type[Event]] = {
    kind_of(cls): cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Event) and cls is not Event
}
