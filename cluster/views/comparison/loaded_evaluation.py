"""Evaluation that is loaded for a comparison. Only the measures and tool names of its rollouts stay in memory.

Tokens and text of displayed rollouts are read again from the rollout file.
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
from agent_rft.types import Evaluation, GroupRequest, Rollout

HELD_OUT: Final = "held_out"
"""Name of the held-out grade, the only measure that a rollout may lack. Its value is then NaN."""
MEASURES: Mapping[str, Callable[[Rollout], float]] = {
    "grade": lambda rollout: rollout.grade.value,
    HELD_OUT: lambda rollout: math.nan if rollout.grade.held_out is None else rollout.grade.held_out,
    "reward": lambda rollout: rollout.reward,
    "busy_s": lambda rollout: rollout.busy_s,
    "completion_tokens": lambda rollout: float(rollout.num_sampled),
    "tool_calls": lambda rollout: float(len(rollout.calls)),
    "turns": lambda rollout: float(len(rollout.turns)),
}
"""Functions that compute the measures of a rollout, by measure name."""
QUESTION_CHARS = 300
"""Maximum length of a row's question. Longer questions are truncated and end with a note."""


@dataclass(frozen=True, slots=True)
class RolloutBrief:
    """Measures and tool names of a rollout, for a comparison.

    `calls` contains the tool name of each call. `failed` contains the tool names of the failed calls. `repeated`
    contains the tool names of repeated calls, which have the same tool and arguments as an earlier call. `read_rollout`
    reads the full rollout from its file.
    """

    trace_id: str
    measures: Mapping[str, float]
    calls: tuple[str, ...]
    failed: tuple[str, ...]
    repeated: tuple[str, ...]
    read_rollout: Callable[[], Rollout]

    @classmethod
    def from_rollout(cls, rollout: Rollout, whole: Callable[[], Rollout]) -> RolloutBrief:
        """Create a RolloutBrief from a rollout. `whole` reads the full rollout, and is stored as `read_rollout`."""
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
            read_rollout=whole,
        )


@dataclass(frozen=True, slots=True)
class GradedRow:
    """Row of an evaluation: the beginning of its question, and its rollouts with a finite grade and reward."""

    question: str
    rollouts: tuple[RolloutBrief, ...]


@dataclass(frozen=True, slots=True)
class LoadedEvaluation:
    """Evaluation in memory: label, run, name of the rollouts, and rows by id.

    `validations` contains (step, mean reward) of each validation of the run. `recorded` is the evaluation that the run
    recorded under this name; None if no evaluation was recorded, as for the rollouts of a training step.
    """

    label: str
    run: str
    name: str
    rows: Mapping[str, GradedRow]
    validations: tuple[tuple[int, float], ...] = ()
    recorded: Evaluation | None = None

    @property
    def missing_note(self) -> str:
        """Sentence about the rollouts without a grade; empty if no rollout is missing, or if this is unknown."""
        return "" if self.recorded is None else self.recorded.missing_note


def load_evaluation(label: str, displayed_run: str, run: RunFolder, name: str) -> LoadedEvaluation:
    """Load the evaluation that a run recorded under the rollout name `name`.

    `displayed_run` is the displayed name of the run.

    Raises:
        FileNotFoundError: The run has no rollouts with this name.
        UserError: The file is damaged or from a newer version.
    """
    found = (
        (request, end if isinstance(end, Rollout) else None, partial(_read_rollout, run, name, place))
        for place, request, end in run.read_outcomes(name)
    )
    validations = run.validations()
    recorded = run.evaluations() | {f"validation-{step:06d}": evaluation for step, evaluation in validations}
    curve = tuple((step, evaluation.reward) for step, evaluation in validations if math.isfinite(evaluation.reward))
    return LoadedEvaluation(label, displayed_run, name, group_by_row(found), curve, recorded.get(name))


def group_by_row(found: Iterable[tuple[GroupRequest, Rollout | None, Callable[[], Rollout]]]) -> dict[str, GradedRow]:
    """Return the rows by id; groups of the same row are merged.

    The entries of `found` are (request, rollout or None, function that reads the rollout again).
    """
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
