"""Events of a run's progress: settings, phases, steps, evaluations, checkpoints, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from agent_rft.events.base import Event, Level, Private, append_reason
from agent_rft.metrics.intervals import FEW
from agent_rft.problems.readiness import Verdict
from agent_rft.types import Evaluation

Phase = Literal["resources", "actors", "replay", "grading", "training", "validation", "checkpoint", "copy"]
Outcome = Literal["done", "stopped", "failed"]
StoreAction = Literal["copy", "remove"]
VALIDATION = "validation"
"""The `name` of an Evaluated event of the validation file."""
PHASE_NAMES: Mapping[Phase, str] = {
    "resources": "waiting for resources",
    "actors": "starting",
    "replay": "replaying updates",
    "grading": "grading",
    "training": "training",
    "validation": "grading the validation file",
    "checkpoint": "writing a checkpoint",
    "copy": "copying the last checkpoint to the checkpoint store",
}


class JobStarted(Event):
    """A run begins, new or resumed, after all checks have passed. Nothing to do."""

    method: str
    """`reinforcement` or `supervised`."""
    total_steps: int
    """Steps that are planned."""

    def __str__(self) -> str:
        return f"{self.method} job with {self.total_steps} steps"


class SettingChosen(Event):
    """What `auto` became in a new run. Set the setting yourself if you know better."""

    setting: str
    """Its path below the method's section, such as `algorithm.learning_rate`, or in the job, such as
    `cluster.micro_batch_tokens`."""
    value: float | str
    """The value, before `learning_rate_multiplier`."""
    why: str
    """What it follows from, such as the number of rows, or the memory of a node."""

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, str) else f"{self.value:.7g}"
        return f"{self.setting}: auto is {value} ({self.why})"


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

    def __str__(self) -> str:
        return f"{self.setting} is {self.now}; the run began with {self.was}"


class JobResumed(Event):
    """Training resumed from the checkpoint of `step`. Updates after it are replayed from the journal, bit by bit."""

    total_steps: int
    """Steps that are planned, those before the checkpoint included."""

    def __str__(self) -> str:
        return f"resumed at step {self.step} of {self.total_steps}"


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

    def __str__(self) -> str:
        name = PHASE_NAMES[self.phase]
        if not self.detail:
            return name
        return f"{name}: {self.detail}" if self.phase == "resources" else f"{name} {self.detail}"


class StepDone(Event):
    """A training step is done: its update was applied, or skipped. The step's metrics say how it went."""

    total_steps: int
    """Steps that are planned."""
    metrics: dict[str, float]
    """Values by the names of `agent_rft.metrics`. When read back, only the finite ones."""

    def __str__(self) -> str:
        return f"step {self.step} of {self.total_steps} is done"


class Evaluated(Event):
    """A whole file was graded: the validation file every `eval_interval` steps, the test file before and after."""

    name: str
    """`validation` (VALIDATION), `test-before`, `test-after`, or `eval-<file>` of `agent-rft eval`."""
    evaluation: Evaluation
    """Mean grade with its confidence interval, pass rate, calls, tokens and times."""
    training_groups_in_flight: int = 0
    """Groups of the next training step that were sampled meanwhile; they make an evaluation slower, not worse."""

    def __str__(self) -> str:
        found = self.evaluation
        interval = found.interval("grade")
        grade = f"grade {found.grade:.3f}" + (f" {interval.bounds('{:.3f}')}" if interval else "")
        rows = found.graded_rows or found.num_rows
        count = f"({found.num_rollouts} rollouts of {rows} rows" + (", a small sample)" if rows < FEW else ")")
        if self.name == VALIDATION:
            return f"validation at step {self.step}: {grade}, reward {found.reward:.3f} {count}"
        return f"{self.name}: {grade}, {found.tool_calls:.2f} tool calls {count}"


class ReadinessJudged(Event):
    """`agent-rft ready`, or the same by the API, has its verdict. The reasons say what to do before training."""

    verdict: Verdict
    """`train`, `fix_first` or `warm_start`."""
    reasons: tuple[str, ...] = ()
    """The codes of the reasons and notes; `agent-rft explain CODE` says more."""

    def __str__(self) -> str:
        return f"the verdict is {self.verdict}: {', '.join(self.reasons)}"


class LossEvaluated(Event):
    """A supervised job evaluated its validation file. A loss that rises while the training loss falls: stop earlier."""

    loss: float
    """Mean cross-entropy of the assistant's tokens, in nats."""
    num_rows: int
    """Rows of the validation file."""

    def __str__(self) -> str:
        return f"validation at step {self.step}: loss {self.loss:.4f} ({self.num_rows} rows)"


class CheckpointSaved(Event):
    """A checkpoint is complete on disk. A run resumes from the last one, and each that is offered is a model."""

    path: Private[str]
    """Its folder."""
    num_bytes: int
    """Its size on disk."""
    valid_reward: float | None = None
    """Mean reward over the validation file at this step, by which the best checkpoints are kept; None without one."""
    offered: bool = True
    """Whether it can be served as a model; false: it is only for resuming a lost run."""
    write_s: float = 0.0
    """How long writing took, while training went on."""

    def __str__(self) -> str:
        return f"checkpoint step-{self.step:06d}" + ("" if self.offered else " to resume from")


class CheckpointIntervalChanged(Event, level="warn"):
    """Writing a checkpoint takes longer than `checkpoint_interval.minutes`, or no longer does, so they change.

    Else training would wait for the disk. A loss costs up to `minutes` of training: use a faster disk for the run
    folder, or a layout with fewer bytes to write (LoRA).
    """

    minutes: float
    """Minutes between checkpoints from now on: twice the time of a write, or those of the job."""
    was: float
    """Minutes before."""
    write_s: float
    """How long writing the last checkpoint took."""

    def __str__(self) -> str:
        change = f"checkpoints are {self.minutes:.1f} minutes apart from now on instead of {self.was:.1f}"
        return f"writing a checkpoint took {self.write_s:.0f} s: {change}"


class TrainingWaitedForCheckpoint(Event, level="warn"):
    """Writing a checkpoint takes longer than the steps of `checkpoint_interval`, which is kept: training waits.

    It is reported once. Raise `cluster.checkpoint_interval.steps` (a resumed job may change it), or use a faster disk.
    """

    steps: int
    """The interval in steps."""
    waited_s: float
    """How long training waited."""

    def __str__(self) -> str:
        interval = "step" if self.steps == 1 else f"{self.steps} steps"
        return f"training waited {self.waited_s:.0f} s for a checkpoint: writing takes longer than {interval}"


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

    def __str__(self) -> str:
        reward = "" if self.best_reward is None else f", with a validation reward of {self.best_reward:.3f}"
        when = f"stopped early, after {self.step} of {self.total_steps} steps"
        return f"{when}: validations brought no gain; the best checkpoint is step-{self.best_step:06d}{reward}"


class NothingLeftToLearn(Event):
    """Training ended before its last step: no signal in three batches, and nearly all groups of the last all right.

    The last checkpoint is the job's model, and is what the test file is graded with. Harder rows teach more.
    """

    total_steps: int
    """Steps that were planned."""

    def __str__(self) -> str:
        when = f"ended after {self.step} of {self.total_steps} steps"
        return f"{when}: nearly all answers are right, nothing is left to learn"


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

    def __str__(self) -> str:
        calls = f"{self.tool_calls:.2f} instead of {self.best_tool_calls:.2f} calls per rollout"
        return (
            f"step-{self.cheaper_step:06d} may be as good as the best checkpoint, step-{self.best_step:06d}, "
            f"with {calls}: its reward differs by {self.reward_change:+.3f}, within the 95 % interval "
            f"({self.num_rows} rows)"
        )


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

    def __str__(self) -> str:
        shares = f"engines were busy {self.engine_share:.0%} of the time, learner ranks {self.rank_share:.0%}"
        if self.better_engines is None:
            return shares
        better = f"{self.better_engines} and {self.better_learner_ranks}"
        return f"{shares}; instead of {self.engines} and {self.learner_ranks} of them, {better} would wait less"


class CheckpointCopied(Event):
    """A checkpoint is complete in the operator's checkpoint store, from which a lost run folder resumes."""

    num_bytes: int
    """Bytes that were copied."""
    seconds: float
    """How long it took, while training went on."""

    def __str__(self) -> str:
        return f"checkpoint step-{self.step:06d} is in the checkpoint store ({self.seconds:.1f} s)"


class CheckpointStoreFailed(Event, level="warn"):
    """The checkpoint store did not take or remove a checkpoint. The job goes on, and its local checkpoints are whole.

    It is tried again. If it does not stop, look at the store's credentials and quota: meanwhile the newest checkpoint
    is only in the run folder.
    """

    action: StoreAction
    """`copy`: a checkpoint was not copied. `remove`: older ones could not be removed, and take room there."""
    cause: Private[str]
    """What the store answered."""
    again_in_s: float | None = None
    """Seconds until it is tried again; None: at the next checkpoint."""

    def __str__(self) -> str:
        what = "take a checkpoint" if self.action == "copy" else "remove older checkpoints"
        again = "at the next checkpoint" if self.again_in_s is None else f"in {self.again_in_s:.0f} s"
        return append_reason(f"the checkpoint store did not {what}", self.cause) + f"; it is tried again {again}"


class CheckpointStoreTaken(Event, level="warn"):
    """Another process has claimed the run's checkpoints in the store, so this process uploads no more of them.

    Either this process was suspended or cut off and the run was started elsewhere: stop this process. Or two runs have
    folders of the same name: give one of them another name.
    """

    def __str__(self) -> str:
        return "another process has claimed the run's checkpoints in the store: this one uploads no more of them"


class StateConverted(Event):
    """A checkpoint was written with other ranks, another ZeRO stage or dtype, and converted on loading.

    Nothing to do. Weights and moments are the same; later losses differ by rounding.
    """

    before: str
    """The layout that wrote it."""
    now: str
    """The layout of the learner."""

    def __str__(self) -> str:
        return f"the checkpoint of step {self.step} was converted from {self.before} to {self.now}"


class UpdatesReplayed(Event):
    """Updates after the last checkpoint were repeated from the journal, with the same rollouts. Nothing to do."""

    num_updates: int
    """How many."""
    num_groups: int = 0
    """Groups that were finished but not yet trained: they are not sampled again."""
    seconds: float = 0.0
    """How long it took."""

    def __str__(self) -> str:
        again = f"replayed {self.num_updates} updates in {self.seconds:.1f} s"
        return f"{again}; {self.num_groups} finished groups are kept"


class JobEnded(Event):
    """The last event of a run. A run that was stopped or failed resumes with `agent-rft train --resume`."""

    outcome: Outcome
    """`done`, `stopped` by a signal or through the API, or `failed`."""
    error: str = ""
    """Why it failed."""

    @property
    def level(self) -> Level:
        return "error" if self.outcome == "failed" else "info"

    def __str__(self) -> str:
        return self.error or ("the job is done" if self.outcome == "done" else "the job was stopped")
