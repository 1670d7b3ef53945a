"""Validation of an RL job between two steps, on one frozen policy version, and early stopping.

Early stopping depends only on the content of checkpoints, so a resumed run stops at the same step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agent_rft.events import (
    VALIDATION,
    BestCheckpointUncertain,
    EarlyStopped,
    Evaluated,
    PhaseStarted,
    ValidationInsufficient,
)
from agent_rft.loop_protocols import LoopEventSink, RolloutService
from agent_rft.metrics.missing_rollouts import ValidationScore, last_gain
from agent_rft.spec.job import EarlyStop
from agent_rft.trainer.loop.checkpoint import LoopState
from agent_rft.trainer.loop.evaluation import evaluate, score_validation
from agent_rft.types import Evaluation, Task


class Validation:
    """Validation of one job with `samples` rollouts of each task; does nothing without tasks."""

    def __init__(
        self,
        rollouts: RolloutService,
        tasks: Sequence[Task],
        samples: int,
        temperature: float,
        pass_threshold: float,
        grade_range: tuple[float, float],
        sink: LoopEventSink,
    ) -> None:
        self._rollouts = rollouts
        self._tasks = tasks
        self._samples = samples
        self._temperature = temperature
        self._pass_threshold = pass_threshold
        self._grade_range = grade_range
        self._sink = sink

    async def run(self, step: int, groups_in_flight: int) -> tuple[Evaluation, ValidationScore] | None:
        """Grade the validation file after `step`; return None if there are no validation tasks.

        `groups_in_flight` is the number of training groups that share the engines.
        """
        if not self._tasks:
            return None
        self._sink.emit(PhaseStarted(phase="validation", step=step))
        evaluation, groups = await evaluate(
            self._rollouts,
            self._tasks,
            "validation",
            self._samples,
            self._temperature,
            self._pass_threshold,
            self._grade_range,
        )
        self._sink.emit_groups(f"validation-{step:06d}", groups)
        self._sink.emit(
            Evaluated(step=step, name=VALIDATION, evaluation=evaluation, training_groups_in_flight=groups_in_flight)
        )
        score = score_validation(groups, self._samples)
        if not score.is_sufficient:
            missing = {(group.request.index, sample) for group in groups for sample in group.missing_samples}
            last = {(g.request.index, d.sample): d for g in groups for d in g.discarded}
            causes = Counter(lost.reason for place, lost in last.items() if place in missing)
            self._sink.emit(
                ValidationInsufficient(
                    step=step, num_missing=score.num_missing, num_rollouts=score.num_rollouts, reasons=dict(causes)
                )
            )
        return evaluation, score


def validation_metrics(evaluation: Evaluation | None) -> dict[str, float]:
    """Return the metrics of a validation; empty without an evaluation."""
    if evaluation is None:
        return {}
    return {
        "full_valid_mean_reward": evaluation.reward,
        "full_valid_mean_grade": evaluation.grade,
        "full_valid_pass_rate": evaluation.pass_rate,
        "full_valid_ci95": evaluation.ci95,
        "full_valid_rollouts": float(evaluation.num_rollouts),
        "full_valid_missing_rollouts": float(evaluation.num_missing),
        "full_valid_tool_calls_mean": evaluation.tool_calls,
        "valid_reasoning_tokens_mean": evaluation.reasoning_tokens,
    } | _bound_metrics(evaluation)


def _bound_metrics(evaluation: Evaluation) -> dict[str, float]:
    """Return the bounds of the grade; without missing rollouts, both are the mean grade."""
    low, high = evaluation.missing_bounds.get("grade", (evaluation.grade, evaluation.grade))
    return {"full_valid_grade_if_wrong": low, "full_valid_grade_if_right": high}


def count_since_last_gain(rewards: Sequence[float], min_gain: float) -> int:
    """Return the number of rewards since the best reward last rose by more than `min_gain`."""
    return len(rewards) - 1 - last_gain(rewards, min_gain)


def should_stop(settings: EarlyStop | None, rewards: Sequence[float]) -> bool:
    """Return whether early stopping with these `settings` ends a job whose validations had these `rewards`."""
    return settings is not None and count_since_last_gain(rewards, settings.min_gain) >= settings.patience


def report_best(sink: LoopEventSink, step: int, total_steps: int, best: LoopState, has_stopped_early: bool) -> None:
    """Report an early stop at `step`. Also warn if the best checkpoint's validation has too many missing rollouts."""
    if has_stopped_early:
        sink.emit(EarlyStopped(step=step, best_step=best.step, best_reward=best.valid_reward, total_steps=total_steps))
    score = best.score
    if score is not None and not score.is_sufficient:
        sink.emit(
            BestCheckpointUncertain(
                step=step, best_step=best.step, num_missing=score.num_missing, num_rollouts=score.num_rollouts
            )
        )
