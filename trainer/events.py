"""What happens in a run: one frozen, versioned type a kind. Control flow goes by these types, never by a message.

An event is written once and read by all: live view, run folder, report, API, Prometheus, third-party sinks. Views make
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
"""The name under which the validation file is evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`step` is the one it is about; None: the stream fills in the last step that was done."""

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
        """Kept in the run's folder, but not shown to people one by one: there may be thousands."""
        return False


# -- the course of a run -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(Event):
    method: str
    total_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResumed(Event):
    """From the checkpoint of `step`."""

    total_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBegan(Event):
    """`detail` says more: what is lacking, what is started, which file is graded."""

    phase: Phase
    detail: str = ""

    @property
    def quiet(self) -> bool:
        return self.phase in ("validation", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Event):
    """`metrics` by the names of `trainer.metrics`; non-finite values are left out once it was stored."""

    total_steps: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated(Event):
    """A whole file was graded. `name`: VALIDATION, or that of the test (`test-before`, `test-after`, `eval-...`)."""

    name: str
    evaluation: Evaluation
    training_groups_in_flight: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LossEvaluated(Event):
    """The validation file of a supervised job: mean cross-entropy in nats."""

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
    """The gradient was not finite."""

    LEVEL: ClassVar[Level] = "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStarved(Event):
    """No group of a batch had a signal, for the `times`-th time in a row.

    Counts: groups `without_signal` by kind, `discarded` rollouts by reason.
    """

    LEVEL: ClassVar[Level] = "warn"

    times: int
    num_lost: int
    without_signal: dict[str, float] = field(default_factory=dict)
    discarded: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLearnerGap(Event):
    """Mean absolute log-probability difference of engine and learner on the same weights."""

    LEVEL: ClassVar[Level] = "warn"

    gap_nats: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRaised(Event):
    """A sign of reward hacking: `metric` went from `before` to `now`. `traces`: ids of rollouts that show it.

    The rules: `top_grade_soon`, `drift`, and `diverged` (it fell while the mean grade rose by `grade_rise`).
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
    """One attempt ended without a grade. `endpoint` is the one that failed, if one did."""

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
    """Most of the last rollouts were discarded; new ones are held back, but for probes.

    `endpoint` is the one that failed most often, `num_by_endpoint` times (where none did, it is the reason).
    """

    LEVEL: ClassVar[Level] = "warn"

    endpoint: str
    num_by_endpoint: int
    num_failed: int
    num_rollouts: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointUp(Event):
    """A probe was graded: rollouts start again."""

    endpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionProblem(Event):
    """Sessions of rollouts cannot be ended, or may still be open."""

    LEVEL: ClassVar[Level] = "warn"

    detail: str


# -- the fleet and the other actors ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWaiting(Event):
    """The cluster has no room for it yet."""

    LEVEL: ClassVar[Level] = "warn"

    engine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReplaced(Event):
    """It was stopped; another one starts in its place."""

    LEVEL: ClassVar[Level] = "warn"

    engine: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRestarted(Event):
    """A replacement was lost while it started; it is started once more."""

    LEVEL: ClassVar[Level] = "warn"

    engine: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJoined(Event):
    """It takes rollouts, with the newest weights."""

    engine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSilent(Event):
    """An actor does not answer. `work`: its own when it was last seen, or `waiting` rollouts that need it."""

    LEVEL: ClassVar[Level] = "warn"

    actor: str
    silent_s: float
    work: tuple[str, ...] = ()
    waiting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorAnswered(Event):
    """It was silent, and answers again."""

    actor: str
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkStalled(Event):
    """An actor answers, but has been at one stage of its own work for very long."""

    LEVEL: ClassVar[Level] = "warn"

    actor: str
    stage: str
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsStalled(Event):
    """No rollout has ended for `idle_s`. `longest`: those that have been in flight for longest."""

    LEVEL: ClassVar[Level] = "warn"

    idle_s: float
    num_in_flight: int
    longest: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentFailed(Event):
    """A part of the driver ended by a bug; the run goes on without it."""

    LEVEL: ClassVar[Level] = "error"

    component: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCutOff(Event):
    """A sink raised, hung or fell behind; it gets no more events."""

    LEVEL: ClassVar[Level] = "warn"

    sink: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(Event):
    """Advice that was found before the start: nothing goes by it."""

    LEVEL: ClassVar[Level] = "warn"

    text: str


def kind_of(cls: type[Event]) -> str:
    """`StepDone` -> `step_done`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


KINDS: dict[str, type[Event]] = {
    kind_of(cls): cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Event) and cls is not Event
}
