"""Prints the rollouts of the same rows in two files beside each other, such as before and after training."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from cluster.views.live import safe_text
from cluster.views.traces import Trace, print_traces
from trainer.types import Rollout

MIN_WIDTH = 40


def pairs_of(before: Iterable[Trace], after: Iterable[Trace]) -> Iterator[tuple[Trace, Trace]]:
    """The first rollout of each row that both files have, graded if there is one, in the order of `after`."""
    first, second = _by_row(before), _by_row(after)
    return ((first[row], trace) for row, trace in second.items() if row in first)


def _by_row(traces: Iterable[Trace]) -> dict[str, Trace]:
    found: dict[str, Trace] = {}
    for trace in traces:
        known = found.get(trace.end.row_id)
        if known is None or (isinstance(trace.end, Rollout) and not isinstance(known.end, Rollout)):
            found[trace.end.row_id] = trace
    return found


def print_pairs(pairs: Iterable[tuple[Trace, Trace]], console: Console) -> int:
    """Print each pair and return how many there were."""
    width, count = max(MIN_WIDTH, (console.width - 3) // 2), 0
    for count, (before, after) in enumerate(pairs, start=1):  # noqa: B007 - it is returned
        console.print(
            Rule(Text(f"row {safe_text(after.end.row_id)}: {_graded(before)} → {_graded(after)}", style="bold"))
        )
        table = Table.grid(padding=(0, 3, 0, 0))
        table.add_column(width=width)
        table.add_column(width=width)
        table.add_row(*(Text.from_ansi(_printed(trace, width, console)) for trace in (before, after)))
        console.print(table)
    return count


def _graded(trace: Trace) -> str:
    return f"{trace.end.grade.value:.3f}" if isinstance(trace.end, Rollout) else "discarded"


def _printed(trace: Trace, width: int, console: Console) -> str:
    out = io.StringIO()
    narrow = Console(
        file=out,
        width=width,
        color_system="truecolor" if console.color_system else None,
        force_terminal=console.is_terminal,
        emoji=False,
    )
    print_traces([trace], narrow)
    return out.getvalue()
