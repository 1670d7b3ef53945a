"""Finds a checkpoint that is as good as the best one by the validation file, and calls fewer tools: users wait less."""

from __future__ import annotations

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.comparison.compare import Change, compare_sides
from agent_rft.cluster.views.comparison.side import Side, read_side
from agent_rft.errors import UserError
from agent_rft.events import FewerCalls
from agent_rft.trainer.loop.checkpoint import best_checkpoint, checkpoints_in


def fewer_calls(run: RunFolder) -> FewerCalls | None:
    """The checkpoint with the fewest calls of those whose reward may be the best one's, if it surely has fewer.

    Each row is compared with itself: the interval of the change of reward includes 0, that of calls lies below it.
    """
    try:
        best = best_checkpoint(run.checkpoints)
        others = [state.step for _, state in checkpoints_in(run.checkpoints) if state.offered]
        names = set(run.rollout_names())
        if best is None or _name(best[1].step) not in names:
            return None
        first = _side(run, best[1].step)
        steps = [step for step in others if step != best[1].step and _name(step) in names]
        found = [_against(first, best[1].step, _side(run, step), step) for step in steps]
    except UserError:  # damaged files, which are told where they are used
        return None
    return min(filter(None, found), key=lambda event: event.tool_calls, default=None)


def _against(best: Side, best_step: int, other: Side, step: int) -> FewerCalls | None:
    comparison = compare_sides([best, other], 0)
    changes: dict[str, Change] = {change.name: change for change in comparison.against[0].changes}
    reward, calls = changes["reward"], changes["tool_calls"]
    if reward.verdict not in ("same", "unclear") or not calls.interval.high < 0:
        return None
    return FewerCalls(
        cheaper_step=step,
        best_step=best_step,
        reward_change=reward.interval.mean,
        tool_calls=calls.after,
        best_tool_calls=calls.before,
        num_rows=len(comparison.rows),
    )


def _name(step: int) -> str:
    return f"validation-{step:06d}"


def _side(run: RunFolder, step: int) -> Side:
    return read_side(f"step {step}", str(run.path), run, _name(step))
