"""Events of learning: skipped updates, lost ranks, full disks, batches without signal, alarms."""

from __future__ import annotations

from dataclasses import field

from agent_rft.events.base import Event, Private
from agent_rft.problems.alarms import AlarmRule
from agent_rft.problems.zero_variance import Cause, Diagnosis, how_many


class UpdateSkipped(Event, level="warn"):
    """An update was skipped because its gradient was not finite.

    One is harmless. Several in a row mean that training has diverged: lower the learning rate, or resume from an
    earlier checkpoint.
    """

    def __str__(self) -> str:
        return f"step {self.step}: the gradient was not finite, the update was skipped"


class LearnerRestarted(Event, level="warn"):
    """A learner rank was lost. All ranks start again from the last checkpoint, and the updates since are replayed.

    Once is mostly a node that went away. Ranks that are lost again and again at the same step end the job: look for
    memory (`agent-rft plan`) and at the rank's log.
    """

    cause: Private[str]
    """Why the rank was lost."""
    times: int
    """Restarts without a finished step in between, this one included."""
    error_type: str = ""
    """The class of the error."""

    def __str__(self) -> str:
        return f"the learner starts again from the last checkpoint, since a rank was lost: {self.cause}"


class DiskFull(Event, level="error"):
    """The disk of the run folder is full: the job pauses, and goes on by itself once there is room.

    Free some space, such as old runs. Nothing is lost, and the last checkpoint is whole.
    """

    def __str__(self) -> str:
        return "the disk of the run folder is full: the job pauses until there is room"


class DiskFreed(Event):
    """The disk has room again, and the job goes on. Nothing to do."""

    def __str__(self) -> str:
        return "the disk has room again: the job goes on"


class BatchStarved(Event, level="warn"):
    """No group of a batch had a signal to learn from; the third batch of this kind in a row ends the run.

    The run has failed then, unless it has done a step and nearly all groups are all right (`nothing_left_to_learn`).
    If most groups are `all_right` or `all_wrong`, the rows are too easy or too hard for this model. `equal` grades in
    between point to the grader, discarded rollouts to the endpoints. The traces are kept as `starved-<step>-<times>`.
    """

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
    error: Private[str] = ""
    """What that tool answered most often; at most 200 characters."""

    def __str__(self) -> str:
        why = Diagnosis(self.cause, self.name, self.error)
        return f"nothing to learn from: {how_many(self.without_signal, self.num_lost)}: {why}"


class NoToolCalls(Event, level="warn"):
    """No rollout of a training step called a tool, although tools were offered. Told once, until a rollout calls one.

    Look at `agent-rft traces RUN`: does the model write calls that are not read as such? Then `tool_parser` is
    not that of its form of calls. Else the chat template may not show it the tools, or nothing has taught it to call.
    """

    num_rollouts: int
    """Graded rollouts of rows that offer tools."""

    def __str__(self) -> str:
        return f"step {self.step}: none of {self.num_rollouts} rollouts called any of its tools"


class EngineLearnerGap(Event, level="warn"):
    """Engine and learner give the same tokens different log-probabilities, although they have the same weights.

    Importance ratios become noise, and a larger gap ends the run. Look whether `cluster.dtype` differs between the
    two, and whether an engine was replaced shortly before.
    """

    gap_nats: float
    """Mean absolute difference of log-probabilities, in nats."""

    def __str__(self) -> str:
        return f"engine and learner differ by {self.gap_nats:.3f} nats on the same weights"


class AlarmRaised(Event, level="warn"):
    """A sign of reward hacking, not a proof: read the rollouts in `traces` with `agent-rft traces RUN --trace ID`."""

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

    def __str__(self) -> str:
        traces = ", ".join(self.traces)
        return f"step {self.step}: {self._describe_change()} (agent-rft explain {self.rule}); look at {traces}"

    def _describe_change(self) -> str:
        if self.rule == "top_grade_soon":
            return f"the mean grade rose from {self.before:.2f} to {self.now:.2f} unusually early: check the grader"
        if self.rule == "drift":
            return f"{self.metric} is {self.now:.1f}, was {self.before:.1f} at the start"
        change = f"{'fell' if self.now < self.before else 'rose'} from {self.before:.2f} to {self.now:.2f}"
        return f"{self.metric} {change} while the grade rose by {self.grade_rise:.2f}"
