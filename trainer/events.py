"""The events of a run: one frozen, versioned type per kind. Control flow depends on types, never on messages.

Events are emitted once and read by all sinks: live view, run folder, API, Prometheus, third-party sinks. Views make
the sentences. `kind` and `VERSION` are stored: a field with a default may be added, other changes raise the version.

    stream.emit(EngineReplaced(engine="engine-0", reason="it did not answer"))
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from trainer.problem_codes.alarms import AlarmRule
from trainer.problem_codes.readiness import Verdict
from trainer.types import Evaluation, Purpose

Level = Literal["info", "warn", "error"]
Phase = Literal["resources", "actors", "replay", "grading", "training", "validation", "checkpoint", "copy"]
Outcome = Literal["done", "stopped", "failed"]
StoreAction = Literal["copy", "remove"]
IntegrationCause = Literal["not_installed", "not_allowed", "failed"]
Cause = Literal[
    "discarded",
    "all_right",
    "guarded",
    "cut_off",
    "out_of_turns",
    "no_calls",
    "malformed_calls",
    "unknown_tools",
    "invalid_arguments",
    "tool_errors",
    "same_answers",
    "constant_grade",
    "decided_rows",
    "too_hard",
]
"""Why the rollouts of a batch teach nothing, as far as they show it."""
VALIDATION = "validation"
"""The `name` of an Evaluated event of the validation file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base class of all events."""

    VERSION: ClassVar[int] = 1
    LEVEL: ClassVar[Level] = "info"
    # Texts for the operator, who has the machine: a server's clients do not see them.
    PRIVATE: ClassVar[frozenset[str]] = frozenset()

    step: int | None = None
    """The step of the event; None: the last step that is done, which the stream fills in."""

    @property
    def kind(self) -> str:
        return kind_of(type(self))

    @property
    def level(self) -> Level:
        return self.LEVEL

    @property
    def passing(self) -> bool:
        """Whether the event is only for views that show the present: it is not stored in the run folder."""
        return False

    @property
    def quiet(self) -> bool:
        """Whether the event is stored but not shown individually, since there may be thousands."""
        return False


# -- progress of a run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(Event):
    """A run begins, new or resumed, after all checks have passed. Nothing to do."""

    method: str
    """`reinforcement` or `supervised`."""
    total_steps: int
    """Steps that are planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChosen(Event):
    """What `auto` became in a new run. Set the setting yourself if you know better."""

    setting: str
    """Its path below the method's section, such as `algorithm.learning_rate`, or in the job, such as
    `cluster.micro_batch_tokens`."""
    value: float | str
    """The value, before `learning_rate_multiplier`."""
    why: str
    """What it follows from, such as the number of rows, or the memory of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChanged(Event):
    """A run goes on with another value of a setting than it began with. Check that you meant it.

    After a resume this is a setting that may differ, such as a URL, or a layout that no longer fits. A new job gets
    another layout (`cluster`) if other GPUs are free when it reserves them than when it was checked.
    """

    setting: str
    """Its path in the job file, such as `method.reinforcement.grader.url`; `cluster` for the layout."""
    now: str
    """The value in the job file, as JSON; long ones are cut. A layout is text, such as `1 engine of 1 GPU`."""
    was: str
    """The value that the run began with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResumed(Event):
    """Training resumed from the checkpoint of `step`. Updates after it are replayed from the journal, bit by bit."""

    total_steps: int
    """Steps that are planned, those before the checkpoint included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBegan(Event):
    """A phase started, so a wait that follows is explained. Nothing to do, unless `resources` never ends."""

    phase: Phase
    """`resources`: waiting for cores or GPUs. `actors`: engines and learner start. `grading`: a whole file is graded.
    `copy`: the last checkpoint is still being copied to the checkpoint store.

    `training`, `validation` and `checkpoint` are parts of the training loop.
    """
    detail: str = ""
    """The missing resources, the actors that start, or the file that is graded."""

    @property
    def quiet(self) -> bool:
        return self.phase in ("validation", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Event):
    """A training step is done: its update was applied, or skipped. The step's metrics say how it went."""

    total_steps: int
    """Steps that are planned."""
    metrics: dict[str, float]
    """Values by the names of `trainer.metrics`. When read back, only the finite ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated(Event):
    """A whole file was graded: the validation file every `eval_interval` steps, the test file before and after."""

    name: str
    """`validation` (VALIDATION), `test-before`, `test-after`, or `eval-<file>` of `agent-rft eval`."""
    evaluation: Evaluation
    """Mean grade with its confidence interval, pass rate, calls, tokens and times."""
    training_groups_in_flight: int = 0
    """Groups of the next training step that were sampled meanwhile; they make an evaluation slower, not worse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessJudged(Event):
    """`agent-rft ready`, or the same by the API, has its verdict. The reasons say what to do before training."""

    verdict: Verdict
    """`train`, `fix_first` or `warm_start`."""
    reasons: tuple[str, ...] = ()
    """The codes of the reasons and notes; `agent-rft explain CODE` says more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossEvaluated(Event):
    """A supervised job evaluated its validation file. A loss that rises while the training loss falls: stop earlier."""

    loss: float
    """Mean cross-entropy of the assistant's tokens, in nats."""
    num_rows: int
    """Rows of the validation file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint is complete on disk. A run resumes from the last one, and each that is offered is a model."""

    PRIVATE: ClassVar[frozenset[str]] = frozenset({"path"})

    path: str
    """Its folder."""
    num_bytes: int
    """Its size on disk."""
    valid_reward: float | None = None
    """Mean reward over the validation file at this step, by which the best checkpoints are kept; None without one."""
    offered: bool = True
    """Whether it can be served as a model; false: it is only for resuming a lost run."""
    write_s: float = 0.0
    """How long writing took, while training went on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIntervalChanged(Event):
    """Writing a checkpoint takes longer than `checkpoint_interval.minutes`, or no longer does, so they change.

    Else training would wait for the disk. A loss costs up to `minutes` of training: use a faster disk for the run
    folder, or a layout with fewer bytes to write (LoRA).
    """

    LEVEL: ClassVar[Level] = "warn"

    minutes: float
    """Minutes between checkpoints from now on: twice the time of a write, or those of the job."""
    was: float
    """Minutes before."""
    write_s: float
    """How long writing the last checkpoint took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWaitedForCheckpoint(Event):
    """Writing a checkpoint takes longer than the steps of `checkpoint_interval`, which is kept: training waits.

    It is reported once. Raise `cluster.checkpoint_interval.steps` (a resumed job may change it), or use a faster disk.
    """

    LEVEL: ClassVar[Level] = "warn"

    steps: int
    """The interval in steps."""
    waited_s: float
    """How long training waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStopped(Event):
    """Training ended before its last step, since the validations of `early_stop.patience` brought no gain.

    The best checkpoint is the job's model, and is what the test file is graded with. To train on, raise the patience,
    or remove `early_stop`, and resume the run.
    """

    best_step: int
    """The step of the best checkpoint, `checkpoints/step-<step>`."""
    best_reward: float | None
    """Its mean reward over the validation file; None if no validation graded anything."""
    total_steps: int
    """Steps that were planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingLeftToLearn(Event):
    """Training ended before its last step: no signal in three batches, and nearly all groups of the last all right.

    The last checkpoint is the job's model, and is what the test file is graded with. Harder rows teach more.
    """

    total_steps: int
    """Steps that were planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FewerCalls(Event):
    """At the end: a checkpoint may be as good as the best one by validation reward, and surely calls fewer tools.

    Each row is compared with itself: the 95 % interval of the change of reward includes 0, that of calls lies below it.
    Look closer with `agent-rft compare RUN:validation-<best> RUN:validation-<cheaper>`, and serve the one you prefer.
    """

    cheaper_step: int
    """The step of the checkpoint with fewer calls."""
    best_step: int
    """The step of the best checkpoint."""
    reward_change: float
    """From the best to it, the mean over the validation rows."""
    tool_calls: float
    """Its calls per rollout."""
    best_tool_calls: float
    """Those of the best."""
    num_rows: int
    """Validation rows that were compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidesCompared(Event):
    """At the end: how busy engines and learner ranks were, and numbers of both with which one would wait less.

    The shares are measured over all steps; the numbers follow from them and were not tried. Set `cluster.engines` and
    `cluster.learner_ranks` in the next job, and check with `agent-rft plan` that they fit.
    """

    engines: int
    """Engines of the run."""
    learner_ranks: int
    """Learner ranks of the run."""
    engine_share: float
    """Share of the time for which an engine had requests to run, as a mean over engines."""
    rank_share: float
    """Share of the time for which the ranks computed updates."""
    better_engines: int | None
    """Engines with which a step would be shorter on the same devices; null: no other number saves much."""
    better_learner_ranks: int | None
    """Learner ranks that go with `better_engines`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCopied(Event):
    """A checkpoint is complete in the operator's checkpoint store, from which a lost run folder resumes."""

    num_bytes: int
    """Bytes that were copied."""
    seconds: float
    """How long it took, while training went on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStoreFailed(Event):
    """The checkpoint store did not take or remove a checkpoint. The job goes on, and its local checkpoints are whole.

    It is tried again. If it does not stop, look at the store's credentials and quota: meanwhile the newest checkpoint
    is only in the run folder.
    """

    LEVEL: ClassVar[Level] = "warn"
    PRIVATE: ClassVar[frozenset[str]] = frozenset({"cause"})

    action: StoreAction
    """`copy`: a checkpoint was not copied. `remove`: older ones could not be removed, and take room there."""
    cause: str
    """What the store answered."""
    again_in_s: float | None = None
    """Seconds until it is tried again; None: at the next checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStoreTaken(Event):
    """Another process has claimed the run's checkpoints in the store, so this process uploads no more of them.

    Either this process was suspended or cut off and the run was started elsewhere: stop this process. Or two runs have
    folders of the same name: give one of them another name.
    """

    LEVEL: ClassVar[Level] = "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateConverted(Event):
    """A checkpoint was written with other ranks, another ZeRO stage or dtype, and converted on loading.

    Nothing to do. Weights and moments are the same; later losses differ by rounding.
    """

    before: str
    """The layout that wrote it."""
    now: str
    """The layout of the learner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatesReplayed(Event):
    """Updates after the last checkpoint were repeated from the journal, with the same rollouts. Nothing to do."""

    num_updates: int
    """How many."""
    num_groups: int = 0
    """Groups that were finished but not yet trained: they are not sampled again."""
    seconds: float = 0.0
    """How long it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded(Event):
    """The last event of a run. A run that was stopped or failed resumes with `agent-rft train --resume`."""

    outcome: Outcome
    """`done`, `stopped` by a signal or through the API, or `failed`."""
    error: str = ""
    """Why it failed."""

    @property
    def level(self) -> Level:
        return "error" if self.outcome == "failed" else "info"


# -- learning ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSkipped(Event):
    """An update was skipped because its gradient was not finite.

    One is harmless. Several in a row mean that training has diverged: lower the learning rate, or resume from an
    earlier checkpoint.
    """

    LEVEL: ClassVar[Level] = "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerRestarted(Event):
    """A learner rank was lost. All ranks start again from the last checkpoint, and the updates since are replayed.

    Once is mostly a node that went away. Ranks that are lost again and again at the same step end the job: look for
    memory (`agent-rft plan`) and at the rank's log.
    """

    LEVEL: ClassVar[Level] = "warn"
    PRIVATE: ClassVar[frozenset[str]] = frozenset({"cause"})

    cause: str
    """Why the rank was lost."""
    times: int
    """Restarts without a finished step in between, this one included."""
    error_type: str = ""
    """The class of the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFull(Event):
    """The disk of the run folder is full: the job pauses, and goes on by itself once there is room.

    Free some space, such as old runs. Nothing is lost, and the last checkpoint is whole.
    """

    LEVEL: ClassVar[Level] = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFreed(Event):
    """The disk has room again, and the job goes on. Nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStarved(Event):
    """No group of a batch had a signal to learn from; the third batch of this kind in a row ends the run.

    The run has failed then, unless it has done a step and nearly all groups are all right (`nothing_left_to_learn`).
    If most groups are `all_right` or `all_wrong`, the rows are too easy or too hard for this model. `equal` grades in
    between point to the grader, discarded rollouts to the endpoints. The traces are kept as `starved-<step>-<times>`.
    """

    LEVEL: ClassVar[Level] = "warn"
    PRIVATE: ClassVar[frozenset[str]] = frozenset({"error"})

    times: int
    """Which batch in a row it is."""
    num_lost: int
    """Groups with fewer than two graded rollouts."""
    without_signal: dict[str, float] = field(default_factory=dict)
    """Groups whose rewards are all equal, by kind: `all_right`, `all_wrong`, `equal`."""
    discarded: dict[str, float] = field(default_factory=dict)
    """Discarded rollouts by reason."""
    cause: Cause
    """The most likely cause, by what nearly all rollouts have in common; the message has it in words."""
    name: str = ""
    """The tool, guard, endpoint or discard reason that the cause is about, if any."""
    error: str = ""
    """What that tool answered most often; at most 200 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoToolCalls(Event):
    """No rollout of a training step called a tool, although tools were offered. Told once, until a rollout calls one.

    Look at `agent-rft traces RUN`: does the model write calls that are not read as such? Then `tool_parser` is
    not that of its form of calls. Else the chat template may not show it the tools, or nothing has taught it to call.
    """

    LEVEL: ClassVar[Level] = "warn"

    num_rollouts: int
    """Graded rollouts of rows that offer tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLearnerGap(Event):
    """Engine and learner give the same tokens different log-probabilities, although they have the same weights.

    Importance ratios become noise, and a larger gap ends the run. Look whether `cluster.dtype` differs between the
    two, and whether an engine was replaced shortly before.
    """

    LEVEL: ClassVar[Level] = "warn"

    gap_nats: float
    """Mean absolute difference of log-probabilities, in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRaised(Event):
    """A sign of reward hacking, not a proof: read the rollouts in `traces` with `agent-rft traces RUN --trace ID`."""

    LEVEL: ClassVar[Level] = "warn"

    rule: AlarmRule
    """Which sign it is: `agent-rft explain RULE` says what it means and what to do."""
    metric: str
    """The metric that changed."""
    before: float
    """Its value over the first steps of the run."""
    now: float
    """Its value at this step."""
    grade_rise: float = 0.0
    """By how much the mean grade rose meanwhile, for `diverged`."""
    traces: tuple[str, ...] = ()
    """Ids of rollouts to look at."""


# -- rollouts and endpoints --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDiscarded(Event):
    """One attempt at a rollout ended without a grade; it is tried again as often as `max_rollout_retries` allows.

    Single ones are normal. If there are many of one `reason` and `endpoint`, look at that endpoint.
    """

    LEVEL: ClassVar[Level] = "warn"

    trace_id: str
    """The id in each request of this attempt, by which your servers' logs can be searched."""
    row_id: str
    """The row: its line and a digest of its content."""
    sample: int
    """The number of the rollout in its group, from 0."""
    purpose: Purpose
    """`train`, `validation` or `test`."""
    reason: str
    """`tool_failed`, `grader_failed`, `rollout_timeout`, `rollout_waited`, `engine_failed` or
    `template_failed`."""
    cause: str
    """The error's message."""
    endpoint: str = ""
    """The endpoint that failed, or what `rollout_waited` mostly waited for, such as `engine-1` or `tool 'search'`."""

    @property
    def quiet(self) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsProgressed(Event):
    """Where the rollouts of the current step or evaluation are, every few seconds. For live views: it is not stored.

    The API has one every half minute. Nothing to do; `slowest_row` and `errors` say where to look if it goes slowly.
    """

    # Rows and answers are for the owner of a job only, and events for each key that may read.
    PRIVATE: ClassVar[frozenset[str]] = frozenset(
        {"slowest_row", "newest_trace", "newest_row", "newest_grade", "newest_calls", "newest_answer"}
    )

    purpose: Purpose
    """`train`, `validation` or `test`."""
    ended: int
    """Rollouts of the next batch, or of the evaluation, that were graded or given up."""
    total: int
    """Rollouts that the batch or evaluation needs."""
    in_flight: int
    """Attempts at rollouts in progress, those for later batches included."""
    calls: dict[str, float] = field(default_factory=dict)
    """Tool calls by tool, of the rollouts that ended since the last step or evaluation."""
    errors: dict[str, float] = field(default_factory=dict)
    """Those of them that were answered with an error."""
    slowest_s: float = 0.0
    """Seconds since the oldest attempt in progress began."""
    slowest_row: str = ""
    """Its row."""
    newest_trace: str = ""
    """The trace id of the rollout that was graded last."""
    newest_row: str = ""
    """Its row."""
    newest_grade: float = 0.0
    """Its grade."""
    newest_calls: tuple[str, ...] = ()
    """Its first tool calls, shortened."""
    newest_answer: str = ""
    """Its answer, shortened."""

    @property
    def passing(self) -> bool:
        return True

    @property
    def quiet(self) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointDown(Event):
    """Most of the last rollouts were discarded; new ones are held back, except for probes.

    The job waits and loses no data. Get the endpoint working again: rollouts resume by themselves (`endpoint_up`).
    """

    LEVEL: ClassVar[Level] = "warn"

    endpoint: str
    """The endpoint that failed most often or, if none did, the most frequent reason."""
    num_by_endpoint: int
    """Rollouts of the last `num_rollouts` that were discarded because of it."""
    num_failed: int
    """Rollouts of the last `num_rollouts` that were discarded for any reason."""
    num_rollouts: int
    """How many of the last rollouts were looked at."""
    cause: str
    """The message of the last error of the endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointUp(Event):
    """A probe was graded, so rollouts resume. Nothing to do."""

    endpoint: str
    """The `endpoint` of the `endpoint_down` before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionProblem(Event):
    """Tool sessions of rollouts cannot be ended or may still be open, so your server may hold resources for them.

    Look at the session server's log, and let it end sessions that were idle for long.
    """

    LEVEL: ClassVar[Level] = "warn"

    detail: str
    """What happened, as a sentence."""


# -- the fleet and the other actors ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWaiting(Event):
    """An engine waits for resources, while the run has begun with the others. It joins when there is room."""

    LEVEL: ClassVar[Level] = "warn"

    engine: str
    """The engine, such as `engine-1`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReplaced(Event):
    """An engine was stopped and a replacement starts; its rollouts begin again on other engines.

    One is nothing to worry about. If it repeats with the same reason, look at the node: memory, GPU errors.
    """

    LEVEL: ClassVar[Level] = "warn"
    PRIVATE: ClassVar[frozenset[str]] = frozenset({"reason"})

    engine: str
    """The engine, such as `engine-1`; the replacement has the same name."""
    reason: str
    """Why it was stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUnstable(Event):
    """An engine was replaced several times in a row, and never worked from one weight update to the next.

    The job continues, because each update renews the number of replacements that are allowed, but the engine's rollouts
    start again each time. Look for the common reason of its `engine_replaced` events: memory (`agent-rft plan`), GPU
    errors, or a node that is preempted.
    """

    LEVEL: ClassVar[Level] = "warn"
    PRIVATE: ClassVar[frozenset[str]] = frozenset({"reason"})

    engine: str
    """The engine, such as `engine-1`."""
    times: int
    """Replacements in a row, this one included."""
    reason: str
    """Why it was stopped the last time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsNotCompared(Event):
    """The engines transform or ignore some tensors of this model as they load them, and their checksums say nothing.

    Whether an engine has the learner's weights is then seen only by the canary (`canary_gap`), which in bfloat16 does
    not notice a single tensor that stays old. Nothing to do unless `canary_gap` rises.
    """

    LEVEL: ClassVar[Level] = "warn"

    tensors: tuple[str, ...]
    """Names of some of them."""
    num_tensors: int
    """How many they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRestarted(Event):
    """A replacement was lost while it started, and starts again. If it repeats, look at the node as well."""

    LEVEL: ClassVar[Level] = "warn"
    PRIVATE: ClassVar[frozenset[str]] = frozenset({"reason"})

    engine: str
    """The engine, such as `engine-1`."""
    reason: str
    """Why it was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJoined(Event):
    """An engine with the newest weights is ready for rollouts. Nothing to do."""

    engine: str
    """The engine, such as `engine-1`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSilent(Event):
    """An actor does not answer: it hangs, its node is overloaded, or the network between them is interrupted.

    If it stays silent it is given up, as if it had died. Look at its node.
    """

    LEVEL: ClassVar[Level] = "warn"

    actor: str
    """The actor, such as `engine-1`, `learner rank 0` or `dispatcher`."""
    silent_s: float
    """Seconds since its last answer."""
    work: tuple[str, ...] = ()
    """Its last known work or, if `waiting`, the rollouts that wait for it."""
    waiting: bool = False
    """Whether `work` are rollouts that wait for the actor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorAnswered(Event):
    """An actor answers again. Nothing to do."""

    actor: str
    """The actor of an `actor_silent` before."""
    silent_s: float
    """Seconds for which it did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkStalled(Event):
    """An actor answers, but has been in one stage of its own work for too long: slow hardware, a full disk, a bug."""

    LEVEL: ClassVar[Level] = "warn"

    actor: str
    """The actor, such as `learner rank 0`."""
    stage: str
    """The stage of its work."""
    for_s: float
    """Seconds in this stage so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOutageBegan(Event):
    """A tool, session server, grader or judge only fails: it gets a probe now and then, and all other calls wait.

    Start the server or repair its URL. The job goes on after the next probe that succeeds, within a minute. Calls that
    reach their deadline before are discarded with their rollouts, never graded 0.
    """

    LEVEL: ClassVar[Level] = "warn"

    endpoint: str
    """Its name, such as `tool 'search'`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOutageEnded(Event):
    """An endpoint answers again after an outage. Nothing to do."""

    endpoint: str
    """Its name, such as `tool 'search'`."""
    began_at: float
    """When it was first seen to be down, in Unix seconds; it ended at the time of the event, to a few seconds."""
    seconds: float
    """How long it was down."""
    delayed_calls: int
    """Calls that had to wait because of it."""
    failed_calls: int
    """Calls that ended without an answer meanwhile; their rollouts were discarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsStalled(Event):
    """No rollout has ended for a long time, although some are in flight: mostly a tool that answers slowly.

    `longest` says what the oldest of them wait for.
    """

    LEVEL: ClassVar[Level] = "warn"

    idle_s: float
    """Seconds since the last rollout ended."""
    num_in_flight: int
    """Rollouts in flight."""
    longest: tuple[str, ...] = ()
    """Those that have been in flight longest, with their stages and actors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentFailed(Event):
    """A part of the driver failed because of a bug; the run continues without it. Report it."""

    LEVEL: ClassVar[Level] = "error"
    PRIVATE: ClassVar[frozenset[str]] = frozenset({"error"})

    component: str
    """The part, such as `watchdog`."""
    error: str
    """Type and message of the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCutOff(Event):
    """A sink (live view, run folder, API, plug-in) raised, hung or fell behind, and gets no more events.

    Training continues. For a sink of your own, fix it; it is called again in the next run.
    """

    LEVEL: ClassVar[Level] = "warn"
    PRIVATE: ClassVar[frozenset[str]] = frozenset({"reason"})

    sink: str
    """The sink's class or the plug-in's name."""
    reason: str
    """What it raised, or how it fell behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrationFailed(Event):
    """A tracker of the job's `integrations` cannot be used, and gets no more numbers. Training continues.

    The run's folder has all of them. The tracker is tried again in the next run, or when this one is resumed.
    """

    LEVEL: ClassVar[Level] = "warn"
    PRIVATE: ClassVar[frozenset[str]] = frozenset({"reason"})

    integration: str
    """Its type, such as `wandb`."""
    cause: IntegrationCause
    """`not_installed`: install the package's extra. `not_allowed`: the operator's `integrations` lacks its address or
    key.

    `failed`: it raised an error, hung or fell behind, such as when its server cannot be reached or refuses the key.
    """
    reason: str
    """What is missing, or what it raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(Event):
    """Advice from the checks before the start, about settings that are allowed but rarely intended. For people only."""

    LEVEL: ClassVar[Level] = "warn"

    text: str
    """The advice, as a sentence."""


def kind_of(cls: type[Event]) -> str:
    """The kind of an event type: `StepDone` -> `step_done`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


KINDS: dict[str, type[Event]] = {
    kind_of(cls): cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Event) and cls is not Event
}
