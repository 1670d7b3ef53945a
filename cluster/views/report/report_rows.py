"""Rows in a report: rows of the graded file with their rollouts. The worst and the best rows are preferred.

The numbers of rows, rollouts and characters are limited, so that a browser can open the report of any run. The report
contains the number of rows and rollouts that are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean

from agent_rft.cluster.views.before_after import mean_grade
from agent_rft.cluster.views.traces import SHOWN_CHARS
from agent_rft.types import Group, Rollout

SHOWN_ROWS, SHOWN_ROLLOUTS = 1000, 16
MAX_CHARS = 20_000_000
"""Maximum total number of characters of the traces on a page. A page of 20 MB opens within seconds."""
ENDS = 5
"""Maximum number of rows in the list of worst rows, and in the list of best rows."""


@dataclass(frozen=True, slots=True)
class RowRollouts:
    """Rollouts of a row in one rollout file.

    `name` is "before" or "after", `file` is the name of the file, and `shown` are the rollouts whose traces are shown.
    """

    name: str
    file: str
    group: Group
    shown: Sequence[Rollout] = ()

    @property
    def grade(self) -> float | None:
        return mean_grade(self.group) if self.group.rollouts else None

    @property
    def calls(self) -> float | None:
        """Mean tool calls per rollout."""
        return fmean(len(rollout.calls) for rollout in self.group.rollouts) if self.group.rollouts else None

    @property
    def left_out(self) -> int:
        """Number of rollouts whose traces are not shown."""
        return len(self.group.rollouts) - len(self.shown)


@dataclass(frozen=True, slots=True)
class ReportRow:
    """Row of a report: its rollouts before and after training. `before` is None if the row was graded only once."""

    before: RowRollouts | None
    after: RowRollouts

    @property
    def line(self) -> str:
        """Line number of the row in its data file."""
        return self.after.group.request.task.row_id.partition("-")[0]

    @property
    def question(self) -> str:
        """Text of the user message at the end of the prompt."""
        return str(self.after.group.request.task.messages[-1].get("content") or "")

    @property
    def change(self) -> float | None:
        old, new = None if self.before is None else self.before.grade, self.after.grade
        return None if old is None or new is None else new - old

    @property
    def sides(self) -> list[RowRollouts]:
        return [self.after] if self.before is None else [self.before, self.after]

    @property
    def example(self) -> Rollout | None:
        """Worst rollout, whose answer and reason represent the row."""
        return min(self.after.group.rollouts, key=lambda rollout: rollout.grade.value, default=None)


@dataclass(frozen=True, slots=True)
class ReportRows:
    """Rows that a report shows, worst first; rows without a grade come last. `num_rows` includes rows not shown."""

    shown: Sequence[ReportRow]
    num_rows: int

    @property
    def extremes(self) -> list[tuple[str, Sequence[ReportRow]]]:
        """Headings and rows of two lists: the worst rows, worst first, and the best rows, best first.

        Empty if all grades are equal.
        """
        graded = [row for row in self.shown if row.after.grade is not None]
        if len(graded) < 2 or graded[0].after.grade == graded[-1].after.grade:
            return []
        count = min(ENDS, len(graded) // 2)
        return [("Worst rows", graded[:count]), ("Best rows", graded[::-1][:count])]


def make_report_rows(before: tuple[str, Sequence[Group]] | None, after: tuple[str, Sequence[Group]]) -> ReportRows:
    """Create the rows of a report from the rollouts after training and, if available, the rollouts before training.

    Both arguments are (name of the rollout file, groups).
    """
    old = {} if before is None else {g.request.task.row_id: RowRollouts("before", before[0], g) for g in before[1]}
    rows = [ReportRow(old.get(g.request.task.row_id), RowRollouts("after", after[0], g)) for g in after[1]]
    ordered = sorted(rows, key=_badness)
    outside_in = chain.from_iterable(zip(ordered, reversed(ordered), strict=True))
    selected = list(outside_in)[: min(len(rows), SHOWN_ROWS)]  # the first len(rows) entries contain each row once
    return ReportRows(sorted(_with_traces(selected), key=_badness), len(rows))


def _badness(row: ReportRow) -> tuple[bool, float, float]:
    """Return a sort key: rows with the lowest grade after training first.

    Among rows with equal grades, the row whose grade fell most is first. Rows without a grade are last.
    """
    grade = row.after.grade
    return grade is None, grade or 0.0, row.change or 0.0


def _with_traces(rows: Iterable[ReportRow]) -> list[ReportRow]:
    """Add traces to the rows until MAX_CHARS is reached; earlier rows take precedence."""
    chars_left = MAX_CHARS

    def limit_traces(side: RowRollouts) -> RowRollouts:
        nonlocal chars_left
        shown = []
        for rollout in side.group.rollouts[:SHOWN_ROLLOUTS]:
            if (size := _num_chars(rollout)) > chars_left:
                break
            chars_left -= size
            shown.append(rollout)
        return replace(side, shown=shown)

    return [
        ReportRow(None if row.before is None else limit_traces(row.before), limit_traces(row.after)) for row in rows
    ]


def _num_chars(rollout: Rollout) -> int:
    """Return the approximate number of characters that a trace adds to the page."""
    texts = [rollout.answer, rollout.grade.reason, *(turn.text for turn in rollout.turns)]
    texts += [call.arguments for call in rollout.calls] + [result.output for result in rollout.results]
    return sum(min(len(text), SHOWN_CHARS) + 100 for text in texts)  # 100: the surrounding tags
