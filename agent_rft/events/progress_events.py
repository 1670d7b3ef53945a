"""Events of a run's progress: settings, phases, steps, evaluations, checkpoints and the end of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from agent_rft.events.base_event import Event, Level, Private, append_reason
from agent_rft.metrics.confidence_intervals import MIN_VALUES
from agent_rft.metrics.missing_rollouts import format_missing
from agent_rft.problems.readiness_reasons import Verdict
from agent_rft.types import Evaluation

Phase = Literal["resources", "actors", "replay", "grading", "training", "validation", "checkpoint", "upload"]
Outcome = Literal["done", "stopped", "failed"]
StoreAction = Literal["upload", "remove"]
VALIDATION = "validation"
"""Value of `name` in the Evaluated events of the validation file."""
PHASE_NAMES: Mapping[Phase, str] = {
    "resources": "waiting for resources",
    "actors": "starting",
    "replay": "replaying updates",
    "grading": "grading",
    "training": "training",
    "validation": "grading the validation file",
    "checkpoint": "writing a checkpoint",
    "upload": "uploading the last checkpoint to the checkpoint store",
}


class JobStarted(Event):
    """A new or resumed run starts; all checks have passed. No action is needed."""

    method: str
    """`reinforcement` or `supervised`."""
    total_steps: int
    """Planned steps."""

    def __str__(self) -> str:
        return f"{self.method} job with {self.total_steps} steps"


class SettingChosen(Event):
    """The value that `auto` chose for a setting in a new run. Set the setting yourself if you have a better value."""

    setting: str
    """Path of the setting. The path starts in the section of the job's method, as in `algorithm.learning_rate`, or at
    the top level of the job, as in `cluster.micro_batch_tokens`."""
    value: float | str
    """The value, before `learning_rate_multiplier` is applied."""
    reason: str
    """Basis of the choice, such as the number of rows or the memory of a node."""

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, str) else f"{self.value:.7g}"
        return f"{self.setting}: auto is {value} ({self.reason})"


class SettingChanged(Event):
    """A setting now differs from its value at the start of the run.

    Check that the change is intended. In a resumed run, a setting such as a URL was changed in the job file, or the
    previous placement no longer fits. In a new run, the placement (`cluster`) changes if the free GPUs
    are no longer the same as during the check.
    """

    setting: str
    """Path of the setting in the job file, such as `method.reinforcement.grader.url`. If the placement changed, the
    value is `cluster`."""
    value: str
    """The new value as JSON; long values are cut. A placement is described in words, such as `1 engine of 1 GPU`."""
    previous_value: str
    """The value at the start of the run."""

    def __str__(self) -> str:
        return f"{self.setting} is {self.value}; the run began with {self.previous_value}"


class JobResumed(Event):
    """Training resumed from the checkpoint of `step`. Later updates are replayed from the journal, bit-identically."""

    total_steps: int
    """Planned steps of the job, including the steps before the checkpoint from which training resumed."""

    def __str__(self) -> str:
        return f"resumed at step {self.step} of {self.total_steps}"


class PhaseStarted(Event):
    """A phase of the run started.

    No action is needed unless the phase `resources` does not end.
    """

    phase: Phase
    """`resources`: waiting for CPUs or GPUs. `actors`: starting engines and learner. `replay`: replaying updates.
    `grading`: grading a file. `upload`: uploading the last checkpoint to the checkpoint store.

    `training`, `validation` and `checkpoint` are parts of the training loop.
    """
    detail: str = ""
    """The missing resources, the actors that are being started, or the file that is being graded."""

    @property
    def is_quiet(self) -> bool:
        return self.phase in ("validation", "checkpoint")

    def __str__(self) -> str:
        name = PHASE_NAMES[self.phase]
        if not self.detail:
            return name
        return f"{name}: {self.detail}" if self.phase == "resources" else f"{name} {self.detail}"


class StepDone(Event):
    """A training step is done; its update was applied or skipped. `metrics` describes the step."""

    total_steps: int
    """Planned steps."""
    metrics: dict[str, float]
    """Metrics of the step, by their names in `agent_rft.metrics`. A stored event has only the finite values."""

    def __str__(self) -> str:
        return f"step {self.step} of {self.total_steps} is done"


class Evaluated(Event):
    """The rollouts for the rows of a file were graded.

    This happens for the validation file every `eval_interval` steps, and for the test file before and after training.
    """

    name: str
    """Name of the evaluation: `validation`, `test-before`, `test-after`, or, for `agent-rft eval`, `eval-<file>`."""
    evaluation: Evaluation
    """Mean grade with its confidence interval, pass rate, calls, tokens and times."""
    training_groups_in_flight: int = 0
    """Groups of the next training step that were sampled during the evaluation. They make the evaluation slower, but do
    not change its grades."""

    def __str__(self) -> str:
        found = self.evaluation
        interval = found.get_interval("grade")
        grade = f"grade {found.grade:.3f}" + (f" {interval.format_bounds('{:.3f}')}" if interval else "")
        rows = found.graded_rows or found.num_rows
        count = f"({found.num_rollouts} rollouts of {rows} rows" + (", a small sample)" if rows < MIN_VALUES else ")")
        missing = f"; {found.missing_note}" if found.num_missing else ""
        if self.name == VALIDATION:
            return f"validation at step {self.step}: {grade}, reward {found.reward:.3f} {count}{missing}"
        return f"{self.name}: {grade}, {found.tool_calls:.2f} tool calls {count}{missing}"


class ValidationInsufficient(Event, level="warn"):
    """Too many rollouts of a validation have no grade, even after they were repeated once.

    This is the case if the number of these rollouts exceeds 5 % of all rollouts, and also exceeds the number of
    rollouts per row. The validation cannot become the best one, and does not count against the patience of early
    stopping. The events `rollout_discarded` name the endpoints that failed. If the rollouts timed out, raise
    `limits.rollout_timeout_s`.
    """

    num_missing: int
    """Rollouts without a grade."""
    num_rollouts: int
    """Rollouts of the validation, including the missing ones."""
    reasons: dict[str, int]
    """Number of missing rollouts by the reason of their last attempt."""

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.reasons.items()))
        return (
            f"the validation at step {self.step} does not count for the best checkpoint and for early stopping: "
            f"{format_missing(self.num_missing, self.num_rollouts)} ({reasons})"
        )


class BestCheckpointUncertain(Event, level="warn"):
    """No validation graded enough rollouts, so the checkpoint with the fewest ungraded rollouts is used as the best.

    Another checkpoint may be better. Get the endpoints working again, and evaluate the checkpoints with
    `agent-rft eval JOB.yaml --file validation_file --model FOLDER`.
    """

    best_step: int
    """The step of the checkpoint, `checkpoints/step-<step>`."""
    num_missing: int
    """Number of rollouts without a grade in the checkpoint's validation."""
    num_rollouts: int
    """Number of rollouts in the checkpoint's validation, including rollouts without a grade."""

    def __str__(self) -> str:
        return (
            f"no validation graded enough rollouts, so step-{self.best_step:06d} is used as the best checkpoint; in "
            f"the validation of this checkpoint, {format_missing(self.num_missing, self.num_rollouts)}"
        )


class ReadinessJudged(Event):
    """A readiness check (`agent-rft ready` or the API) has ended with a verdict.

    The explanation of each reason lists what to do before training.
    """

    verdict: Verdict
    """`train`, `fix_first` or `sft_warm_up`."""
    reasons: tuple[str, ...] = ()
    """Codes of the reasons and notes; `agent-rft explain CODE` explains each."""

    def __str__(self) -> str:
        return f"the verdict is {self.verdict}: {', '.join(self.reasons)}"


class LossEvaluated(Event):
    """A supervised job evaluated its validation file.

    If the validation loss rises while the training loss falls, train for fewer steps.
    """

    loss: float
    """Mean cross-entropy of the assistant's tokens, in nats."""
    num_rows: int
    """Rows of the validation file."""

    def __str__(self) -> str:
        return f"validation at step {self.step}: loss {self.loss:.4f} ({self.num_rows} rows)"


class CheckpointSaved(Event):
    """A checkpoint was completely written to disk. A run resumes from its last checkpoint."""

    path: Private[str]
    """Folder of the checkpoint."""
    num_bytes: int
    """Size on disk."""
    valid_reward: float | None = None
    """Mean validation reward at this step, over the graded rollouts; None if there was no validation."""
    is_servable: bool = True
    """Whether the checkpoint can be served as a model. If false, it can only be used to resume a lost run."""
    write_s: float = 0.0
    """Seconds to write the checkpoint, while training continued."""

    def __str__(self) -> str:
        return f"checkpoint step-{self.step:06d}" + ("" if self.is_servable else " to resume from")


class CheckpointIntervalChanged(Event, level="warn"):
    """The interval between checkpoints was adapted to the time that writing a checkpoint takes.

    If writing is slow, the interval is longer than in the job, so that training does not wait for the disk. If the run
    is lost, up to `minutes` of training are lost. To shorten the interval, use a faster disk for the run folder, or
    train an adapter (LoRA), whose checkpoints are smaller.
    """

    minutes: float
    """New interval in minutes: `checkpoint_interval.minutes` or, if writing is slow, twice the write time."""
    previous_minutes: float
    """Previous interval in minutes."""
    write_s: float
    """Seconds to write the last checkpoint."""

    def __str__(self) -> str:
        change = (
            f"the interval between checkpoints is now {self.minutes:.1f} minutes instead of {self.previous_minutes:.1f}"
        )
        return f"writing a checkpoint took {self.write_s:.0f} s: {change}"


class TrainingWaitedForCheckpoint(Event, level="warn"):
    """Training waited for a checkpoint, because writing it took longer than `checkpoint_interval.steps` steps.

    Reported once. An interval in steps is not adjusted automatically. Raise `cluster.checkpoint_interval.steps`, which
    you may change when you resume the run, or use a faster disk.
    """

    steps: int
    """The checkpoint interval in steps."""
    waited_s: float
    """Seconds for which training waited."""

    def __str__(self) -> str:
        interval = "one step" if self.steps == 1 else f"{self.steps} steps"
        return f"training waited {self.waited_s:.0f} s for a checkpoint: writing one takes longer than {interval}"


class EarlyStopped(Event):
    """Training ended early, because the last `early_stop.patience` validations brought no improvement.

    The best checkpoint is the job's model, and the test file is graded with it. To continue training, raise the
    patience or remove `early_stop`, and resume the run.
    """

    best_step: int
    """The step of the best checkpoint, `checkpoints/step-<step>`."""
    best_reward: float | None
    """Mean reward of the best checkpoint over the validation file; None if no validation graded a rollout."""
    total_steps: int
    """Planned steps."""

    def __str__(self) -> str:
        reward = "" if self.best_reward is None else f", with a validation reward of {self.best_reward:.3f}"
        when = f"stopped early, after {self.step} of {self.total_steps} steps"
        return (
            f"{when}: the validation reward did not improve; the best checkpoint is step-{self.best_step:06d}{reward}"
        )


class NothingLeftToLearn(Event):
    """Training ended early: three batches in a row had no signal, and nearly all groups of the third are `all_right`.

    The last checkpoint is the job's model, and the test file is graded with it. To train further, use harder rows.
    """

    total_steps: int
    """Planned steps."""

    def __str__(self) -> str:
        when = f"ended after {self.step} of {self.total_steps} steps"
        return f"{when}: nearly all answers are right, so nothing is left to learn"


class FewerCallsFound(Event):
    """A checkpoint makes significantly fewer tool calls than the best checkpoint, and may be equally good.

    The best checkpoint has the highest validation reward. Emitted at the end of a run. Both checkpoints are compared
    row by row: the 95 % interval of the change in reward includes 0, and the interval of the change in calls is below
    0. Compare both checkpoints with `agent-rft compare RUN:validation-<best> RUN:validation-<cheaper>`, and serve the
    one you prefer.
    """

    cheaper_step: int
    """The step of the checkpoint with fewer calls."""
    best_step: int
    """The step of the best checkpoint."""
    reward_change: float
    """Mean change in reward over the validation rows, from the best checkpoint to the checkpoint with fewer calls."""
    tool_calls: float
    """Tool calls per rollout of the checkpoint at `cheaper_step`."""
    best_tool_calls: float
    """Tool calls per rollout of the best checkpoint."""
    num_rows: int
    """Validation rows that were compared."""

    def __str__(self) -> str:
        calls = f"{self.tool_calls:.2f} instead of {self.best_tool_calls:.2f} calls per rollout"
        return (
            f"step-{self.cheaper_step:06d} uses {calls} and may be as good as the best checkpoint, "
            f"step-{self.best_step:06d}: the change in reward ({self.reward_change:+.3f}) may be due to chance "
            f"(95 % interval over {self.num_rows} rows)"
        )


class UtilizationMeasured(Event):
    """Utilization of engines and learner ranks over the run, and recommended numbers of engines and ranks.

    Emitted at the end of a run. The recommended numbers were not tried. Set `cluster.engines` and
    `cluster.learner_ranks` in the next job, and check with `agent-rft plan` that the numbers fit.
    """

    engines: int
    """Number of engines of the run."""
    learner_ranks: int
    """Number of learner ranks of the run."""
    engine_share: float
    """Share of the time in which an engine had requests to run, averaged over engines."""
    rank_share: float
    """Fraction of the time that the learner ranks spent on computing updates."""
    better_engines: int | None
    """Number of engines that would shorten a step on the same devices; null if no other number saves much time."""
    better_learner_ranks: int | None
    """Number of learner ranks to use together with `better_engines`."""

    def __str__(self) -> str:
        shares = f"engines were busy {self.engine_share:.0%} of the time, learner ranks {self.rank_share:.0%}"
        if self.better_engines is None:
            return shares
        better = f"{self.better_engines} engines and {self.better_learner_ranks} learner ranks"
        return f"{shares}; steps would be shorter with {better} (this run has {self.engines} and {self.learner_ranks})"


class CheckpointUploaded(Event):
    """A checkpoint was uploaded to the operator's checkpoint store.

    If the run folder is lost, the run can resume from this store.
    """

    num_bytes: int
    """Number of uploaded bytes."""
    duration_s: float
    """Duration of the upload in seconds. Training continues during the upload."""

    def __str__(self) -> str:
        return f"checkpoint step-{self.step:06d} was uploaded to the checkpoint store in {self.duration_s:.1f} s"


class CheckpointStoreFailed(Event, level="warn"):
    """An upload to the checkpoint store, or a removal from it, failed. The job continues with its local checkpoints.

    The operation is retried. If the failures continue, check the store's credentials and quota. Until an upload
    succeeds, the newest checkpoint is only in the run folder.
    """

    action: StoreAction
    """Action that failed. `upload`: uploading a checkpoint. `remove`: removing older checkpoints. If the removal
    fails, the older checkpoints still use space in the store."""
    cause: Private[str]
    """Error message of the store."""
    retry_in_s: float | None = None
    """Seconds until the next try; None if the next try is at the next checkpoint."""

    def __str__(self) -> str:
        what = "uploading a checkpoint to" if self.action == "upload" else "removing older checkpoints from"
        again = "at the next checkpoint" if self.retry_in_s is None else f"in {self.retry_in_s:.0f} s"
        return append_reason(f"{what} the checkpoint store failed", self.cause) + f"; the next try is {again}"


class CheckpointStoreClaimed(Event, level="warn"):
    """Another process has claimed the run's checkpoints in the store, so this process no longer uploads checkpoints.

    If this process was suspended or cut off and the run was started elsewhere, stop this process. If two runs have
    folders of the same name, rename one of the folders.
    """

    def __str__(self) -> str:
        return (
            "another process has claimed the run's checkpoints in the store: this process no longer uploads checkpoints"
        )


class StateConverted(Event):
    """A checkpoint with a different number of ranks, ZeRO stage or dtype was converted on loading.

    Nothing to do. The weights and the optimizer's moments are unchanged; later losses differ only by rounding errors.
    """

    previous_layout: str
    """Learner layout of the checkpoint."""
    layout: str
    """Current learner layout."""

    def __str__(self) -> str:
        return f"the checkpoint of step {self.step} was converted from {self.previous_layout} to {self.layout}"


class UpdatesReplayed(Event):
    """Updates after the last checkpoint were repeated from the journal, with the same rollouts. Nothing to do."""

    num_updates: int
    """Number of replayed updates."""
    num_groups: int = 0
    """Number of finished groups that have not been trained on yet. These groups are not sampled again."""
    duration_s: float = 0.0
    """Seconds for the replay."""

    def __str__(self) -> str:
        replayed = f"replayed {self.num_updates} updates in {self.duration_s:.1f} s"
        return f"{replayed}; {self.num_groups} finished groups are reused"


class JobEnded(Event):
    """The last event of a run. A stopped or failed run can be resumed with `agent-rft train --resume`."""

    outcome: Outcome
    """`done`, `failed`, or `stopped` (by a signal or through the API)."""
    error: str = ""
    """Reason for the failure."""

    @property
    def level(self) -> Level:
        return "error" if self.outcome == "failed" else "info"

    def __str__(self) -> str:
        return self.error or ("the job is done" if self.outcome == "done" else "the job was stopped")
