"""One evaluation in a comparison; only measures and tool names of its rollouts stay in memory.

Tokens and text of displayed rollouts are read from their file again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from sys import intern
from typing import Final

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.traces import cut
from agent_rft.errors import UserError
from agent_rft.rows.rollout_files import LinePosition
from agent_rft.types import GroupRequest, Rollout

HELD_OUT: Final = "held_out"
"""The only measure that may be missing from a rollout, as NaN."""
MEASURES: Mapping[str, Callable[[Rollout], float]] = {
    "grade": lambda rollout: rollout.grade.value,
    HELD_OUT: lambda rollout: math.nan if rollout.grade.held_out is None else rollout.grade.held_out,
    "reward": lambda rollout: rollout.reward,
    "busy_s": lambda rollout: rollout.busy_s,
    "completion_tokens": lambda rollout: float(rollout.num_sampled),
    "tool_calls": lambda rollout: float(len(rollout.calls)),
    "turns": lambda rollout: float(len(rollout.turns)),
}
"""Measures of a rollout that are compared, by their names in EVALUATION."""
QUESTION_CHARS = 300
"""Maximum length of a row's question; a note at its end counts the characters that are left out."""


@dataclass(frozen=True, slots=True)
class RolloutBrief:
    """Compared data of a rollout: its measures, and the tools of all calls, of failed calls and of repeated calls.

    A call is repeated if the rollout has called the same tool with the same arguments before. `whole` reads the full
    rollout.
    """

    trace_id: str
    measures: Mapping[str, float]
    calls: tuple[str, ...]
    failed: tuple[str, ...]
    repeated: tuple[str, ...]
    whole: Callable[[], Rollout]

    @classmethod
    def from_rollout(cls, rollout: Rollout, whole: Callable[[], Rollout]) -> RolloutBrief:
        """Create the brief of a rollout; `whole` reads the rollout again."""
        seen: set[tuple[str, str]] = set()
        repeated = []
        for call in rollout.calls:
            if (call.name, call.arguments) in seen:
                repeated.append(intern(call.name))
            seen.add((call.name, call.arguments))
        pairs = zip(rollout.calls, rollout.results, strict=True)
        return cls(
            rollout.trace_id,
            {name: measure(rollout) for name, measure in MEASURES.items()},
            calls=tuple(intern(call.name) for call in rollout.calls),
            failed=tuple(intern(call.name) for call, result in pairs if result.error is not None),
            repeated=tuple(repeated),
            whole=whole,
        )


@dataclass(frozen=True, slots=True)
class GradedRow:
    """Row of a side: the beginning of its question, and its rollouts with a finite grade and reward."""

    question: str
    rollouts: tuple[RolloutBrief, ...]


@dataclass(frozen=True, slots=True)
class LoadedEvaluation:
    """One evaluation: its label, the run and rollout name that recorded it, and its rows by id.

    `validations` has the step and mean reward of each validation of the run.
    """

    label: str
    run: str
    name: str
    rows: Mapping[str, GradedRow]
    validations: tuple[tuple[int, float], ...] = ()


def load_evaluation(label: str, shown: str, run: RunFolder, name: str) -> LoadedEvaluation:
    """Read the rollouts `name` of a run; only the briefs stay in memory. `shown` is the displayed name of the run.

    Raises:
        FileNotFoundError: The run has no rollouts with this name.
        UserError: The file is damaged or from a newer version.
    """
    found = (
        (request, end if isinstance(end, Rollout) else None, partial(_read_rollout, run, name, place))
        for place, request, end in run.read_outcomes(name)
    )
    curve = tuple((step, found.reward) for step, found in run.validations() if math.isfinite(found.reward))
    return LoadedEvaluation(label, shown, name, group_by_row(found), curve)


def group_by_row(found: Iterable[tuple[GroupRequest, Rollout | None, Callable[[], Rollout]]]) -> dict[str, GradedRow]:
    """Return rows by id from (request, rollout or None, reader) entries; groups of the same row are merged."""
    rows: dict[str, tuple[str, list[RolloutBrief]]] = {}
    for request, rollout, whole in found:
        task = request.task
        question = cut(str(task.messages[-1].get("content") or ""), QUESTION_CHARS)  # the last message is the user's
        _, briefs = rows.setdefault(task.row_id, (question, []))
        if rollout is not None and math.isfinite(rollout.grade.value) and math.isfinite(rollout.reward):
            briefs.append(RolloutBrief.from_rollout(rollout, whole))
    return {row_id: GradedRow(question, tuple(briefs)) for row_id, (question, briefs) in rows.items()}


def _read_rollout(run: RunFolder, name: str, place: LinePosition) -> Rollout:
    with suppress(FileNotFoundError, KeyError):
        end = run.outcome_at(name, place)
        if isinstance(end, Rollout):
            return end
    raise UserError(
        f"the rollouts {name} of {run.path} were removed or rewritten during the comparison. Compare again."
    )
