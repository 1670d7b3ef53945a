"""Checks of each step that detect training problems.

The problems are zero-variance batches, engines that differ from the learner, missing tool calls, and reward hacking.
Each check emits an event if it finds a problem. The first two checks can end the training before the model learns from
wrong data. The event for a zero-variance batch names a cause, which must apply to nearly all rollouts of the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from agent_rft.errors import TrainingHalted
from agent_rft.events import EngineLearnerGap, NoToolCalls, ZeroVarianceBatch
from agent_rft.loop_protocols import LoopEventSink
from agent_rft.problems.zero_variance_causes import Cause, Diagnosis, summarize_groups
from agent_rft.trainer.loop.alarms import RewardHackingAlarms
from agent_rft.trainer.loop.group_buffer import Batch
from agent_rft.types import Group, Rollout, ToolResult

MAX_ZERO_VARIANCE_BATCHES = 3
GAP_WARNS_AT, GAP_HALTS_AT = 0.1, 0.5
"""Limits of the mean absolute difference, in nats, between the log-probabilities of engine and learner.

Both have the same weights, so the difference is usually 1e-6 in float32 and about 0.02 in bfloat16. A difference of
GAP_WARNS_AT means that there is an error somewhere. At GAP_HALTS_AT, importance weights are meaningless, and training
stops."""
RATIO_HALTS_AT = 4.0
MIN_GAP_TOKENS = 200
"""Minimum number of tokens from which the gap and the importance ratio of a step may warn or halt.

A few unlikely tokens determine the mean of a smaller number, even if the weights are equal."""


class StepChecks:
    """Runs the checks of this module on each of a job's `total_steps` steps."""

    def __init__(self, total_steps: int, sink: LoopEventSink) -> None:
        self._alarms = RewardHackingAlarms(total_steps)
        self._sink = sink
        self._zero_variance_steps = 0
        self._calls_no_tools = False

    def report_zero_variance(self, batch: Batch, step: int) -> bool:
        """Report a batch without any group to train on; `step` is the last completed step.

        Returns:
            Whether nothing is left to learn. This is the case if it is the third such batch in a row, at least one step
            is done, and nearly all groups of the batch are "all_right".

        Raises:
            TrainingHalted: This is the third such batch in a row, but at least one of the other conditions is not met.
        """
        self._zero_variance_steps += 1
        discarded = Counter(d.reason for group in batch.all_groups for d in group.discarded)
        found = diagnose(batch)
        self._sink.emit_groups(f"zero-variance-{step + 1:06d}-{self._zero_variance_steps}", batch.all_groups)
        self._sink.emit(
            ZeroVarianceBatch(
                step=step,
                times=self._zero_variance_steps,
                num_lost=batch.num_lost,
                zero_variance={kind: float(n) for kind, n in batch.zero_variance.items()},
                discarded={reason: float(n) for reason, n in discarded.items()},
                cause=found.cause,
                name=found.name,
                error=found.error,
            )
        )
        self._check_calls(batch, step + 1)
        if self._zero_variance_steps < MAX_ZERO_VARIANCE_BATCHES:
            return False
        if found.cause != "all_right" or step == 0:
            counts = summarize_groups(batch.zero_variance, batch.num_lost)
            batches = f"{self._zero_variance_steps} batches in a row"
            what = f"{batches} had no group to train on (groups of the last batch: {counts})"
            raise TrainingHalted(f"{what}: {found}", public_message=f"{what}: {replace(found, error='')}")
        return True

    def check(self, batch: Batch, step: int, metrics: dict[str, float]) -> None:
        """Check a completed step, given its batch and metrics.

        Raises:
            TrainingHalted: With the same weights, the log-probabilities of engine and learner differ too much, so
                importance weights are meaningless.
        """
        self._zero_variance_steps = 0
        is_measured = metrics.get("logprob_gap_tokens", 0.0) >= MIN_GAP_TOKENS
        gap = max(metrics.get("logprob_gap", 0.0) if is_measured else 0.0, metrics.get("canary_gap", 0.0))
        ratio = metrics.get("importance_ratio_same_version", 1.0) if is_measured else 1.0
        if gap >= GAP_HALTS_AT or not 1 / RATIO_HALTS_AT < ratio < RATIO_HALTS_AT:
            raise TrainingHalted(
                "engine and learner compute different log-probabilities with the same weights: "
                f"mean absolute difference {gap:.3f} nats, mean importance ratio {ratio:.3f}"
            )
        if gap >= GAP_WARNS_AT:
            self._sink.emit(EngineLearnerGap(step=step, gap_nats=gap))
        self._check_calls(batch, step)
        for alarm in self._alarms.check_step(metrics, [r for group in batch.all_groups for r in group.rollouts]):
            self._sink.emit(alarm)

    def _check_calls(self, batch: Batch, step: int) -> None:
        """Emit NoToolCalls if a batch has tools but no calls, unless the previous batch had no calls either."""
        rollouts = [r for group in batch.all_groups if group.request.task.tools for r in group.rollouts]
        if not rollouts:
            return
        before, self._calls_no_tools = self._calls_no_tools, not any(rollout.calls for rollout in rollouts)
        if self._calls_no_tools and not before:
            self._sink.emit(NoToolCalls(step=step, num_rollouts=len(rollouts)))


# -- diagnosis ---------------------------------------------------------------------------------------------------------


NEARLY_ALL = 0.9
"""Minimum share of the rollouts or tool calls that must have a problem before `diagnose` reports it."""
ERROR_CHARS = 200


def diagnose(batch: Batch) -> Diagnosis:
    """Return the first cause that explains nearly all rollouts of a zero-variance batch."""
    groups = batch.all_groups
    rollouts = [rollout for group in groups for rollout in group.trainable]
    kinds = batch.zero_variance
    if not rollouts or batch.num_lost > kinds.total():
        lost = [d.endpoint or d.reason for group in groups for d in group.discarded]
        num_untrained = sum(len(group.rollouts) for group in groups) - len(rollouts)
        return Diagnosis("untrained") if num_untrained > len(lost) else Diagnosis("discarded", _modal_value(lost))
    if kinds["all_right"] >= NEARLY_ALL * kinds.total():
        return Diagnosis("all_right")
    guards = [rollout.grade.guard for rollout in rollouts if rollout.grade.guard is not None]
    if _explains(guards, rollouts):
        return Diagnosis("guarded", _modal_value(guards))
    if _explains([r for r in rollouts if r.finish in ("max_tokens", "context", "timeout")], rollouts):
        return Diagnosis("truncated")
    if (calls := _diagnose_calls(groups)) is not None:
        return calls
    if _explains([r for r in rollouts if r.finish == "max_steps"], rollouts):
        return Diagnosis("out_of_turns")
    return _diagnose_grades(groups, rollouts)


def _diagnose_calls(groups: Sequence[Group]) -> Diagnosis | None:
    """Return the diagnosis if the tool calls are the cause of a zero-variance batch; otherwise None."""
    with_tools = [rollout for group in groups if group.request.task.tools for rollout in group.trainable]
    pairs = [pair for r in with_tools for pair in zip(r.calls, r.results, strict=True)]
    if with_tools and not pairs:
        return Diagnosis("no_calls")
    causes: dict[str, Cause] = {
        "malformed_call": "malformed_calls",
        "unknown_tool": "unknown_tools",
        "invalid_arguments": "invalid_arguments",
        "tool_error": "tool_errors",
    }
    for error, cause in causes.items():
        failed = [(call.name, result) for call, result in pairs if result.error == error]
        if pairs and _explains(failed, pairs):
            name = _modal_value([called for called, _ in failed])
            return Diagnosis(cause, name, _modal_output(result for called, result in failed if called == name))
    return None


def _diagnose_grades(groups: Sequence[Group], rollouts: Sequence[Rollout]) -> Diagnosis:
    alike = [group for group in groups if len({_response(rollout) for rollout in group.trainable}) == 1]
    if _explains(alike, [group for group in groups if group.trainable]):
        return Diagnosis("same_answers")
    grades = {round(rollout.grade.value, 6) for rollout in rollouts}
    if grades == {0.0}:
        return Diagnosis("too_hard")
    return Diagnosis("constant_grade" if len(grades) == 1 else "constant_rows")


def _response(rollout: Rollout) -> tuple[str, ...]:
    return (rollout.answer, *(f"{call.name} {call.arguments}" for call in rollout.calls))


def _modal_output(results: Iterable[ToolResult]) -> str:
    return " ".join(_modal_value([result.output for result in results]).split())[:ERROR_CHARS]


def _modal_value(names: Sequence[str]) -> str:
    return Counter(names).most_common(1)[0][0] if names else ""


def _explains(matching: Sequence[object], total: Sequence[object]) -> bool:
    return len(matching) >= NEARLY_ALL * len(total) > 0
