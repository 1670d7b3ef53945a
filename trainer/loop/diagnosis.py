"""Cause of a batch without signal: what nearly all of its rollouts have in common.

The cause is decided by types and counts, never by the text of a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from agent_rft.problems.zero_variance import Cause, Diagnosis
from agent_rft.trainer.loop.buffer import Batch
from agent_rft.types import Group, Rollout, ToolResult

NEARLY_ALL = 0.9
"""Share of the rollouts, or of their calls, that a cause must explain."""
ERROR_CHARS = 200


def diagnose(batch: Batch) -> Diagnosis:
    """The cause that explains nearly all rollouts of a batch without signal; the first one that does."""
    groups = batch.all_groups
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    kinds = batch.without_signal
    if not rollouts or batch.num_lost > kinds.total():
        return Diagnosis("discarded", _most([d.endpoint or d.reason for group in groups for d in group.discarded]))
    if kinds["all_right"] >= NEARLY_ALL * kinds.total():
        return Diagnosis("all_right")
    guards = [rollout.grade.guard for rollout in rollouts if rollout.grade.guard is not None]
    if _explains(guards, rollouts):
        return Diagnosis("guarded", _most(guards))
    if _explains([r for r in rollouts if r.finish in ("max_tokens", "context")], rollouts):
        return Diagnosis("cut_off")
    if (calls := _of_calls(groups)) is not None:
        return calls
    if _explains([r for r in rollouts if r.finish == "max_steps"], rollouts):
        return Diagnosis("out_of_turns")
    return _of_grades(groups, rollouts)


def _of_calls(groups: Sequence[Group]) -> Diagnosis | None:
    """What is wrong with the calls, if that explains it."""
    able = [rollout for group in groups if group.request.task.tools for rollout in group.rollouts]
    pairs = [pair for r in able for pair in zip(r.calls, r.results, strict=True)]
    if able and not pairs:
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
            name = _most([called for called, _ in failed])
            return Diagnosis(cause, name, _answer(result for called, result in failed if called == name))
    return None


def _of_grades(groups: Sequence[Group], rollouts: Sequence[Rollout]) -> Diagnosis:
    alike = [group for group in groups if len({_said(rollout) for rollout in group.rollouts}) == 1]
    if _explains(alike, [group for group in groups if group.rollouts]):
        return Diagnosis("same_answers")
    grades = {round(rollout.grade.value, 6) for rollout in rollouts}
    if grades == {0.0}:
        return Diagnosis("too_hard")
    return Diagnosis("constant_grade" if len(grades) == 1 else "decided_rows")


def _said(rollout: Rollout) -> tuple[str, ...]:
    return (rollout.answer, *(f"{call.name} {call.arguments}" for call in rollout.calls))


def _answer(results: Iterable[ToolResult]) -> str:
    return " ".join(_most([result.output for result in results]).split())[:ERROR_CHARS]


def _most(names: Sequence[str]) -> str:
    return Counter(names).most_common(1)[0][0] if names else ""


def _explains(some: Sequence[object], of: Sequence[object]) -> bool:
    return len(some) >= NEARLY_ALL * len(of) > 0
