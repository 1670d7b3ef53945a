"""The rows of a report: the graded file's, each with all its tries, the worst and the best before those between.

What is shown has a bound in rows, tries and characters, so that the page of any run opens. What is left out is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean

from agent_rft.cluster.views.before_after import mean_grade
from agent_rft.cluster.views.traces import SHOWN_CHARS
from agent_rft.types import Group, Rollout

SHOWN_ROWS, SHOWN_TRIES = 1000, 16
MAX_CHARS = 20_000_000
"""The length of all traces of a page; one of 20 MB opens within seconds."""
ENDS = 5
"""Rows in the lists of the worst and of the best."""


@dataclass(frozen=True, slots=True)
class Side:
    """A row in one graded file: `file` is the name of its rollouts, `shown` are the tries whose traces are shown."""

    name: str
    file: str
    group: Group
    shown: Sequence[Rollout] = ()

    @property
    def grade(self) -> float | None:
        return mean_grade(self.group) if self.group.rollouts else None

    @property
    def calls(self) -> float | None:
        """Mean tool calls of a try."""
        return fmean(len(rollout.calls) for rollout in self.group.rollouts) if self.group.rollouts else None

    @property
    def left_out(self) -> int:
        """Tries whose traces are not shown."""
        return len(self.group.rollouts) - len(self.shown)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the graded file: graded once, or before and after training."""

    before: Side | None
    after: Side

    @property
    def line(self) -> str:
        """Its line in the file."""
        return self.after.group.request.task.row_id.partition("-")[0]

    @property
    def question(self) -> str:
        """The last message of the prompt, which is the user's."""
        return str(self.after.group.request.task.messages[-1].get("content") or "")

    @property
    def change(self) -> float | None:
        old, new = None if self.before is None else self.before.grade, self.after.grade
        return None if old is None or new is None else new - old

    @property
    def sides(self) -> list[Side]:
        return [self.after] if self.before is None else [self.before, self.after]

    @property
    def example(self) -> Rollout | None:
        """The worst try, whose answer and reason stand for the row."""
        return min(self.after.group.rollouts, key=lambda rollout: rollout.grade.value, default=None)


@dataclass(frozen=True, slots=True)
class Rows:
    """What is shown of a file, worst first; rows without a grade come last."""

    shown: Sequence[Row]
    num_rows: int

    @property
    def ends(self) -> list[tuple[str, Sequence[Row]]]:
        """The worst and the best rows, best first; none where all grades are equal."""
        graded = [row for row in self.shown if row.after.grade is not None]
        if len(graded) < 2 or graded[0].after.grade == graded[-1].after.grade:
            return []
        count = min(ENDS, len(graded) // 2)
        return [("Worst rows", graded[:count]), ("Best rows", graded[::-1][:count])]


def rows_of(before: tuple[str, Sequence[Group]] | None, after: tuple[str, Sequence[Group]]) -> Rows:
    """The rows of a file by the names and groups of its rollouts, before training (if it was graded then) and after."""
    old = {} if before is None else {g.request.task.row_id: Side("before", before[0], g) for g in before[1]}
    rows = [Row(old.get(g.request.task.row_id), Side("after", after[0], g)) for g in after[1]]
    ordered = sorted(rows, key=_badness)
    outside_in = chain.from_iterable(zip(ordered, reversed(ordered), strict=True))
    kept = list(outside_in)[: min(len(rows), SHOWN_ROWS)]  # each row is there once among the first len(rows)
    return Rows(sorted(_with_traces(kept), key=_badness), len(rows))


def _badness(row: Row) -> tuple[bool, float, float]:
    """Sorts the worst rows first, of equal ones those that lost most."""
    grade = row.after.grade
    return grade is None, grade or 0.0, row.change or 0.0


def _with_traces(rows: Iterable[Row]) -> list[Row]:
    """The rows with the traces that there is room for; the earlier ones have precedence."""
    room = MAX_CHARS

    def side(of: Side) -> Side:
        nonlocal room
        shown = []
        for rollout in of.group.rollouts[:SHOWN_TRIES]:
            if (size := _num_chars(rollout)) > room:
                break
            room -= size
            shown.append(rollout)
        return replace(of, shown=shown)

    return [Row(None if row.before is None else side(row.before), side(row.after)) for row in rows]


def _num_chars(rollout: Rollout) -> int:
    """About how much of the page a trace takes."""
    texts = [rollout.answer, rollout.grade.reason, *(turn.text for turn in rollout.turns)]
    texts += [call.arguments for call in rollout.calls] + [result.output for result in rollout.results]
    return sum(min(len(text), SHOWN_CHARS) + 100 for text in texts)  # 100: the tags around it
