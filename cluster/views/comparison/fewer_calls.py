"""Search for a checkpoint that is as good as the best one but makes fewer tool calls, so that users wait less."""

from __future__ import annotations

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.comparison.comparison_stats import MeasureChange, compare_evaluations
from agent_rft.cluster.views.comparison.loaded_evaluation import LoadedEvaluation, load_evaluation
from agent_rft.errors import UserError
from agent_rft.events import FewerCallsFound
from agent_rft.trainer.loop.checkpoint import best_checkpoint, list_checkpoints


def find_fewer_calls(run: RunFolder) -> FewerCallsFound | None:
    """Find a checkpoint that is as good as the best checkpoint, but makes fewer tool calls.

    If there are several, the checkpoint with the fewest calls is returned. If there are none, None is returned.
    Validations are compared row by row: the interval of the change in reward must include 0, and the interval of the
    change in calls must be below 0.
    """
    try:
        best = best_checkpoint(run.checkpoints)
        others = [state.step for _, state in list_checkpoints(run.checkpoints) if state.is_servable]
        names = set(run.rollout_names())
        if best is None or _validation_name(best[1].step) not in names:
            return None
        first = _read_step(run, best[1].step)
        steps = [step for step in others if step != best[1].step and _validation_name(step) in names]
        found = [_compare_steps(first, best[1].step, _read_step(run, step), step) for step in steps]
    except UserError:  # damaged files are reported when they are used
        return None
    return min(filter(None, found), key=lambda event: event.tool_calls, default=None)


def _compare_steps(
    best: LoadedEvaluation, best_step: int, other: LoadedEvaluation, step: int
) -> FewerCallsFound | None:
    comparison = compare_evaluations([best, other], 0)
    changes: dict[str, MeasureChange] = {change.name: change for change in comparison.side_comparisons[0].changes}
    reward, calls = changes["reward"], changes["tool_calls"]
    if reward.verdict not in ("same", "unclear") or not calls.interval.high < 0:
        return None
    return FewerCallsFound(
        cheaper_step=step,
        best_step=best_step,
        reward_change=reward.interval.mean,
        tool_calls=calls.after,
        best_tool_calls=calls.before,
        num_rows=len(comparison.rows),
    )


def _validation_name(step: int) -> str:
    return f"validation-{step:06d}"


def _read_step(run: RunFolder, step: int) -> LoadedEvaluation:
    return load_evaluation(f"step {step}", str(run.path), run, _validation_name(step))
