"""One evaluation as a comparison needs it: of each rollout some numbers and names, read without holding the rest.

The tokens and texts of a rollout that is shown are read again from where they are.
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
from agent_rft.rows.rollout_files import Place
from agent_rft.types import GroupRequest, Rollout

HELD_OUT: Final = "held_out"
"""The only measure that a rollout may lack: it is NaN then."""
MEASURES: Mapping[str, Callable[[Rollout], float]] = {
    "grade": lambda rollout: rollout.grade.value,
    HELD_OUT: lambda rollout: math.nan if rollout.grade.held_out is None else rollout.grade.held_out,
    "reward": lambda rollout: rollout.reward,
    "busy_s": lambda rollout: rollout.busy_s,
    "completion_tokens": lambda rollout: float(rollout.num_sampled),
    "tool_calls": lambda rollout: float(len(rollout.calls)),
    "turns": lambda rollout: float(len(rollout.turns)),
}
"""What is compared of a rollout, by the names of EVALUATION."""
QUESTION_CHARS = 300
"""How much of a row's question is kept; it ends with how much is left out."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What is compared of a rollout. The tuples are names of tools: of all calls in order, of failed, of repeated ones.

    A call is repeated if the rollout has called the same tool with the same arguments before.
    """

    trace_id: str
    measures: Mapping[str, float]
    calls: tuple[str, ...]
    failed: tuple[str, ...]
    repeated: tuple[str, ...]
    whole: Callable[[], Rollout]

    @classmethod
    def of(cls, rollout: Rollout, whole: Callable[[], Rollout]) -> Brief:
        """`whole` reads the rollout again."""
        seen: set[tuple[str, str]] = set()
        repeated = []
        for call in rollout.calls:
            if (call.name, call.arguments) in seen:
                repeated.append(intern(call.name))
            seen.add((call.name, call.arguments))
        pairs = zip(rollout.calls, rollout.results, strict=True)
        return cls(
            rollout.trace_id,
            {name: of(rollout) for name, of in MEASURES.items()},
            calls=tuple(intern(call.name) for call in rollout.calls),
            failed=tuple(intern(call.name) for call, result in pairs if result.error is not None),
            repeated=tuple(repeated),
            whole=whole,
        )


@dataclass(frozen=True, slots=True)
class Graded:
    """A row of a side: the beginning of its question, and its rollouts with a finite grade and reward."""

    question: str
    rollouts: tuple[Brief, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """One evaluation: how the user named it, where it is recorded, and its rows by their ids.

    `validations` are the steps and mean rewards of all validations of its run.
    """

    label: str
    run: str
    name: str
    rows: Mapping[str, Graded]
    validations: tuple[tuple[int, float], ...] = ()


def read_side(label: str, shown: str, run: RunFolder, name: str) -> Side:
    """The rollouts of this name of a run that is called `shown`, read once and in constant memory but for the briefs.

    Raises:
        FileNotFoundError: No rollouts of that name were written.
        UserError: The file is damaged or newer.
    """
    found = (
        (request, end if isinstance(end, Rollout) else None, partial(_at, run, name, place))
        for place, request, end in run.read_outcomes(name)
    )
    curve = tuple((step, found.reward) for step, found in run.validations() if math.isfinite(found.reward))
    return Side(label, shown, name, rows_of(found), curve)


def rows_of(found: Iterable[tuple[GroupRequest, Rollout | None, Callable[[], Rollout]]]) -> dict[str, Graded]:
    """Each row by its id, from requests with each of their rollouts, or with None; groups of one row are one."""
    rows: dict[str, tuple[str, list[Brief]]] = {}
    for request, rollout, whole in found:
        task = request.task
        question = cut(str(task.messages[-1].get("content") or ""), QUESTION_CHARS)  # the last message is the user's
        _, briefs = rows.setdefault(task.row_id, (question, []))
        if rollout is not None and math.isfinite(rollout.grade.value) and math.isfinite(rollout.reward):
            briefs.append(Brief.of(rollout, whole))
    return {row_id: Graded(question, tuple(briefs)) for row_id, (question, briefs) in rows.items()}


def _at(run: RunFolder, name: str, place: Place) -> Rollout:
    with suppress(FileNotFoundError, KeyError):
        end = run.outcome_at(name, place)
        if isinstance(end, Rollout):
            return end
    raise UserError(f"the rollouts {name} of {run.path} were removed or written again meanwhile: compare again")
