"""Validation of an RL job between two steps, on one frozen policy version, and early stopping.

Early stopping depends only on the content of checkpoints, so a resumed run stops at the same step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from agent_rft.events import VALIDATION, Evaluated, PhaseStarted
from agent_rft.loop_protocols import LoopEventSink, RolloutService
from agent_rft.spec.job import EarlyStop
from agent_rft.trainer.loop.evaluation import evaluate
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
        sink: LoopEventSink,
    ) -> None:
        self._rollouts = rollouts
        self._tasks = tasks
        self._samples = samples
        self._temperature = temperature
        self._pass_threshold = pass_threshold
        self._sink = sink

    async def run(self, step: int, groups_in_flight: int) -> Evaluation | None:
        """Grade the validation file after `step`; return None if there are no validation tasks.

        `groups_in_flight` is the number of training groups that share the engines.
        """
        if not self._tasks:
            return None
        self._sink.emit(PhaseStarted(phase="validation", step=step))
        evaluation, groups = await evaluate(
            self._rollouts, self._tasks, "validation", self._samples, self._temperature, self._pass_threshold
        )
        self._sink.emit_groups(f"validation-{step:06d}", groups)
        self._sink.emit(
            Evaluated(step=step, name=VALIDATION, evaluation=evaluation, training_groups_in_flight=groups_in_flight)
        )
        return evaluation


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
        "full_valid_tool_calls_mean": evaluation.tool_calls,
        "valid_reasoning_tokens_mean": evaluation.reasoning_tokens,
    }


def count_since_last_gain(rewards: Sequence[float], min_gain: float) -> int:
    """Return the number of rewards since the best reward last rose by more than `min_gain`."""
    best, count = -math.inf, 0
    for reward in rewards:
        gained = reward > best + min_gain
        best, count = (reward, 0) if gained else (best, count + 1)
    return count


def should_stop(settings: EarlyStop | None, rewards: Sequence[float]) -> bool:
    """Return whether early stopping with these `settings` ends a job whose validations had these `rewards`."""
    return settings is not None and count_since_last_gain(rewards, settings.min_gain) >= settings.patience
