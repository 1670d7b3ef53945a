"""Terminal output of a comparison of evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_rft.cluster.views.comparison.comparison_stats import (
    CALL_CHANGE_LABELS,
    REWARD_CHANGE_LABELS,
    ComparisonRow,
    EvaluationComparison,
    SideComparison,
    Verdict,
)
from agent_rft.cluster.views.comparison.loaded_evaluation import RolloutBrief
from agent_rft.cluster.views.live_view import safe_text
from agent_rft.cluster.views.traces import cut

STYLES: Mapping[Verdict, str] = {"better": "green", "worse": "red", "unclear": "yellow", "same": "dim"}
SHOWN_IDS = 5
ANSWER_CHARS = 120


def print_comparison(comparison: EvaluationComparison, console: Console) -> None:
    """Print a comparison. Text from rows and models is made safe for a terminal."""
    labels = [side.label for side in comparison.sides]
    console.print(
        f"[bold]{len(comparison.rows)} rows[/], each compared across the evaluations; 95 % intervals", highlight=False
    )
    for line in describe_left_out(comparison):
        console.print(Text(safe_text(f"  {line}"), style="yellow"), soft_wrap=True)
    console.print(_measures_table(comparison))
    for label, against in zip(labels[1:], comparison.side_comparisons, strict=True):
        console.print(_quadrants_table(label, against))
    if any(summary.means["tool_calls"] for summary in comparison.summaries):
        console.print(_tools_table(comparison))
    for number, against in enumerate(comparison.side_comparisons, start=1):
        for heading, rows in (("gained most", against.gained), ("lost most", against.lost)):
            _print_rows(console, f"{heading}: {labels[0]} → {labels[number]}", rows, number, comparison)


def describe_left_out(comparison: EvaluationComparison) -> Iterator[str]:
    """Yield lines about rows that were not compared and rollouts without a grade, at most three per evaluation."""
    for side, only, ungraded in zip(comparison.sides, comparison.unshared_rows, comparison.ungraded, strict=True):
        for ids, what in ((only, "only in this evaluation"), (ungraded, "without a grade in this evaluation")):
            if ids:
                more = "" if len(ids) <= SHOWN_IDS else f" and {len(ids) - SHOWN_IDS} more"
                yield f"{side.label}: {len(ids)} row{'s' * (len(ids) > 1)} {what}: {', '.join(ids[:SHOWN_IDS])}{more}"
        if side.missing_note:
            yield f"{side.label}: {side.missing_note}"


def measure_lines(comparison: EvaluationComparison) -> Iterator[list[tuple[str, Verdict | None]]]:
    """Yield the lines of the measures table: label, first value, then value and change for each other evaluation."""
    for lines in zip(*(against.changes for against in comparison.side_comparisons), strict=True):
        first = lines[0]
        yield [
            (first.label, None),
            (first.text(first.before), None),
            *(cell for line in lines for cell in ((line.text(line.after), None), (line.change, line.verdict))),
        ]
    summaries = comparison.summaries
    for label, form, values in (
        ("turns, 95th percentile", "{:.1f}", [summary.turns_p95 for summary in summaries]),
        ("model and tool time, 95th percentile", "{:.2f} s", [summary.busy_p95_s for summary in summaries]),
        ("repeated calls per rollout", "{:.2f}", [summary.repeated for summary in summaries]),
    ):
        yield [
            (label, None),
            (form.format(values[0]), None),
            *(
                (text, None)
                for value in values[1:]
                for text in (form.format(value), form.replace(":", ":+").format(value - values[0]))
            ),
        ]


def _measures_table(comparison: EvaluationComparison) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", max_width=32)
    for number, side in enumerate(comparison.sides):
        table.add_column(Text(side.label), justify="right", overflow="fold")
        if number:
            table.add_column("change", justify="right", no_wrap=True)
    for line in measure_lines(comparison):
        table.add_row(*(Text(text, style="" if verdict is None else STYLES[verdict]) for text, verdict in line))
    return table


def _quadrants_table(label: str, against: SideComparison) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=Text(f"rows of {label} by change", style="bold"), title_justify="left")
    for heading in ("", *CALL_CHANGE_LABELS.values()):
        table.add_column(heading, justify="right")
    for sign, name in REWARD_CHANGE_LABELS.items():
        table.add_row(name, *(str(against.quadrants.get((sign, calls), 0)) for calls in CALL_CHANGE_LABELS))
    return table


def _tools_table(comparison: EvaluationComparison) -> Table:
    """Return the table of tools with the statistics of `SideToolUse`."""
    table = Table(box=box.SIMPLE_HEAD, title=Text("tools", style="bold"), title_justify="left")
    for heading in ("tool", "", "calls per rollout", "failed", "repeated", "first", "last"):
        table.add_column(heading, justify="left" if heading in ("tool", "") else "right")
    for tool in comparison.tools:
        for number, (side, summary) in enumerate(zip(comparison.sides, comparison.summaries, strict=True)):
            name = Text(safe_text(tool) if number == 0 else "")
            if (use := summary.tools.get(tool)) is None:
                table.add_row(name, Text(side.label, style="dim"), "0.00", *("–",) * 4)
                continue
            shares = (f"{share:.0%}" for share in (use.failed, use.repeated, use.first, use.last))
            table.add_row(name, Text(side.label, style="dim"), f"{use.calls:.2f}", *shares)
    return table


def tool_path(rollout: RolloutBrief) -> str:
    """Return the tools that a rollout called, in order, with repetitions merged: `search x2 → cat → answer`."""
    steps: list[tuple[str, int]] = []
    for name in rollout.calls:
        times = steps.pop()[1] + 1 if steps and steps[-1][0] == name else 1
        steps.append((name, times))
    return " → ".join([*(name + (f" x{times}" if times > 1 else "") for name, times in steps), "answer"])


def _print_rows(
    console: Console, heading: str, rows: tuple[ComparisonRow, ...], number: int, comparison: EvaluationComparison
) -> None:
    if not rows:
        return
    console.print(Text(heading, style="bold"))
    for row in rows:
        question = " ".join(row.question.split())
        console.print(Text(safe_text(f"  row {row.row_id}: {question}")), soft_wrap=True)
        for at in (0, number):
            rollout, means = row.rollouts[at][0], row.means[at]
            facts = f"reward {means['reward']:.3f}, {means['tool_calls']:.1f} calls"
            answer = cut(" ".join(rollout.read_rollout().answer.split()), ANSWER_CHARS)
            line = f"    {comparison.sides[at].label}: {facts}; {tool_path(rollout)}: {answer}"
            console.print(Text(safe_text(line), style="dim"), soft_wrap=True)
            run, name = comparison.sides[at].run, comparison.sides[at].name
    shown = f"agent-rft traces {run} --name {name} --row {rows[0].row_id}"
    console.print(Text(safe_text(f"  full traces: {shown}"), style="dim"), soft_wrap=True)
    console.print()
