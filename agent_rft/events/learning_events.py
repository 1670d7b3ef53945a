"""Events of learning: skipped updates, lost ranks, full disks, zero-variance batches, alarms."""

from __future__ import annotations

from dataclasses import field

from agent_rft.events.base_event import Event, Private
from agent_rft.problems.alarm_rules import AlarmRule
from agent_rft.problems.zero_variance_causes import Cause, Diagnosis, summarize_groups


class UpdateSkipped(Event, level="warn"):
    """An update was skipped because its gradient was not finite.

    A single skipped update is harmless. Several in a row mean that training has diverged: lower the learning rate, or
    resume from an earlier checkpoint.
    """

    def __str__(self) -> str:
        return f"step {self.step}: the update was skipped, because its gradient was not finite"


class LearnerRestarted(Event, level="warn"):
    """A learner rank was lost. All ranks restart from the last checkpoint and replay the updates since then.

    A single restart is usually caused by the loss of a node. Repeated losses at the same step end the job: check the
    memory (`agent-rft plan`) and the rank's log.
    """

    cause: Private[str]
    """Reason why the rank was lost."""
    times: int
    """Consecutive restarts without a finished step, including this one."""
    error_type: str = ""
    """Class of the error."""

    def __str__(self) -> str:
        return f"the learner restarts from the last checkpoint because a rank was lost: {self.cause}"


class DiskFull(Event, level="error"):
    """The disk of the run folder is full. The job pauses, and resumes automatically once there is free space.

    Free some space, for example by deleting old runs. Nothing is lost, and the last checkpoint is complete.
    """

    def __str__(self) -> str:
        return "the disk of the run folder is full: the job pauses until there is free space"


class DiskFreed(Event):
    """The disk has free space again, and the job resumes. Nothing to do."""

    def __str__(self) -> str:
        return "the disk has free space again: the job resumes"


class ZeroVarianceBatch(Event, level="warn"):
    """A batch has no learning signal: every group has zero variance or was lost.

    The third such batch in a row ends the run. If the run has completed a step and nearly all groups of the batch are
    `all_right`, the run ends without an error, with the event `nothing_left_to_learn`. Otherwise it fails.

    If most groups are `all_right` or `all_wrong`, the rows are too easy or too hard for this model. A group is `equal`
    if all its rewards are the same, but its rollouts are neither all right nor all wrong. If many groups are `equal`,
    check the grader. If many rollouts were discarded, check the endpoints. The traces are stored as
    `zero-variance-<step>-<times>`.
    """

    times: int
    """Consecutive batches without signal, including this one."""
    num_lost: int
    """Number of lost groups, which have fewer than two graded rollouts."""
    zero_variance: dict[str, float] = field(default_factory=dict)
    """Number of zero-variance groups (all rewards equal), by kind: `all_right`, `all_wrong`, `equal`."""
    discarded: dict[str, float] = field(default_factory=dict)
    """Number of discarded rollouts by reason."""
    cause: Cause
    """The most likely cause. The event's message describes the cause."""
    name: str = ""
    """Name of the tool, guard, endpoint or discard reason that `cause` is about; empty if there is no such name."""
    error: Private[str] = ""
    """The tool's most frequent error message, up to 200 characters."""

    def __str__(self) -> str:
        why = Diagnosis(self.cause, self.name, self.error)
        return f"the batch has no signal ({summarize_groups(self.zero_variance, self.num_lost)}): {why}"


class NoToolCalls(Event, level="warn"):
    """No rollout of a training step called a tool, although the rows offer tools.

    Reported once, and again only after a rollout has called a tool.

    Read the traces (`agent-rft traces RUN`). If the model writes calls that are not parsed, `tool_parser` does not
    match their syntax. Otherwise the chat template may not show the tools, or the model was never taught to call
    tools.
    """

    num_rollouts: int
    """Graded rollouts of rows that offer tools."""

    def __str__(self) -> str:
        return f"step {self.step}: no tool was called in any of {self.num_rollouts} rollouts"


class EngineLearnerGap(Event, level="warn"):
    """Engine and learner compute different log-probabilities for the same tokens, although they have the same weights.

    The difference makes importance weights noisy. If it grows further, the run ends. Check whether engine and learner
    use different dtypes (`cluster.dtype`), and whether an engine was replaced shortly before. In a mixture of experts,
    the two may choose different experts: set `algorithm.router_replay`.
    """

    gap_nats: float
    """Mean absolute difference of log-probabilities, in nats."""

    def __str__(self) -> str:
        return f"log-probabilities of engine and learner differ by {self.gap_nats:.3f} nats with the same weights"


class AlarmRaised(Event, level="warn"):
    """A metric shows a possible sign of reward hacking.

    Read the rollouts in `traces` with `agent-rft traces RUN --trace ID`.
    """

    rule: AlarmRule
    """Rule that raised the alarm; `agent-rft explain RULE` explains it and lists what to do."""
    metric: str
    """The metric that changed."""
    initial_value: float
    """Value of the metric over the first steps of the run."""
    value: float
    """Value of the metric at this step."""
    grade_rise: float = 0.0
    """Rise of the mean grade since the first steps of the run; only for the rule `diverged`."""
    traces: tuple[str, ...] = ()
    """Trace ids of rollouts to read."""

    def __str__(self) -> str:
        traces = ", ".join(self.traces)
        return (
            f"step {self.step}: {self._describe_change()} (agent-rft explain {self.rule}); read the rollouts {traces}"
        )

    def _describe_change(self) -> str:
        if self.rule == "early_top_grade":
            change = f"the mean grade rose from {self.initial_value:.2f} to {self.value:.2f}"
            return f"{change} unusually early: check the grader"
        if self.rule == "drift":
            return f"{self.metric} is {self.value:.1f}; it was {self.initial_value:.1f} at the start"
        change = (
            f"{'fell' if self.value < self.initial_value else 'rose'} from {self.initial_value:.2f} to {self.value:.2f}"
        )
        return f"{self.metric} {change} while the grade rose by {self.grade_rise:.2f}"
