"""Summary of a grader's outcomes on recorded rollouts, as printed tables or as JSON lines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from statistics import fmean

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_rft.actors.graders.grader_protocol import error_name, sum_judge_tokens
from agent_rft.cluster.views.live_view import safe_text
from agent_rft.cluster.views.regrade import GradingCase
from agent_rft.errors import RftError
from agent_rft.types import Grade

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
BINS = 10
BAR_WIDTH = 40
SHOWN_ERRORS, SHOWN_CHANGES = 3, 20
SAME = 1e-9
"""Grades that differ by less than this count as equal."""


@dataclass(frozen=True, slots=True)
class GradingNoise:
    """Differences between the grades that two runs of a grader gave to the same rollout.

    For each rollout, the grades of each pair of runs are compared. `num_pairs` is the number of comparisons in which
    both runs gave a grade. `num_one_graded` is the number of comparisons in which only one of the two runs gave a
    grade.
    """

    num_pairs: int
    mean_difference: float
    changed_share: float
    num_one_graded: int


@dataclass(frozen=True, slots=True)
class GradingSummary:
    """Statistics of the outcomes of a grader over all runs.

    `quantiles` are in the order of QUANTILES; `bins` are (low, high, count). `errors` maps the API's error names to
    (count, examples). `scores` are the mean grades of a multi grader's parts. `guards` counts how often each
    guard tripped.
    """

    num_cases: int
    num_runs: int
    num_graded: int
    mean: float
    pass_rate: float
    quantiles: tuple[float, ...] = ()
    bins: tuple[tuple[float, float, int], ...] = ()
    errors: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    guards: dict[str, int] = field(default_factory=dict)
    held_out_mean: float | None = None
    held_out_failures: int = 0
    judge_tokens: dict[str, int] = field(default_factory=dict)
    noise: GradingNoise | None = None


def summarize_grades(runs: Sequence[Sequence[Grade | RftError]], pass_threshold: float) -> GradingSummary:
    """Summarize the outcomes `runs[run][rollout]`. All runs have the same rollouts."""
    outcomes = [outcome for run in runs for outcome in run]
    grades = [outcome for outcome in outcomes if isinstance(outcome, Grade)]
    values = np.array([grade.value for grade in grades], dtype=np.float64)
    held_out = [grade.held_out for grade in grades if grade.held_out is not None]
    parts = dict.fromkeys(part for grade in grades for part in grade.scores)
    return GradingSummary(
        num_cases=len(runs[0]),
        num_runs=len(runs),
        num_graded=len(grades),
        mean=float(values.mean()) if grades else float("nan"),
        pass_rate=float((values >= pass_threshold).mean()) if grades else float("nan"),
        quantiles=tuple(float(q) for q in np.quantile(values, QUANTILES)) if grades else (),
        bins=_count_bins(values) if grades else (),
        errors=_group_errors(outcome for outcome in outcomes if isinstance(outcome, RftError)),
        scores={part: fmean(g.scores[part] for g in grades if part in g.scores) for part in parts},
        guards=dict(Counter(grade.guard for grade in grades if grade.guard is not None)),
        held_out_mean=fmean(held_out) if held_out else None,
        held_out_failures=sum(bool(grade.held_out_error) for grade in grades),
        judge_tokens=sum_judge_tokens(grades),
        noise=_measure_noise(runs) if len(runs) > 1 else None,
    )


def json_lines(cases: Sequence[GradingCase], runs: Sequence[Sequence[Grade | RftError]]) -> Iterator[str]:
    """Yield one line of JSON for each rollout and run, sorted by rollout.

    `runs` has the outcomes of each run, in the order of `cases`. Each line has the keys `grade` and `error`. One of the
    two values is null.
    """
    for case, outcomes in zip(cases, zip(*runs, strict=True), strict=True):
        about = {"where": case.where, "row_id": case.row_id, "trace_id": case.trace_id, "recorded": case.recorded_grade}
        for number, outcome in enumerate(outcomes, start=1):
            grade = asdict(outcome) if isinstance(outcome, Grade) else None
            error = {"kind": error_name(outcome), "message": outcome.message} if isinstance(outcome, RftError) else None
            yield json.dumps({**about, "run": number, "grade": grade, "error": error})


def find_grade_changes(
    cases: Sequence[GradingCase], runs: Sequence[Sequence[Grade | RftError]]
) -> list[tuple[GradingCase, float, float]]:
    """Return (case, recorded grade, new mean grade) for cases whose grade changed, the largest gain first."""
    changed = []
    for case, outcomes in zip(cases, zip(*runs, strict=True), strict=True):
        values = [outcome.value for outcome in outcomes if isinstance(outcome, Grade)]
        if case.recorded_grade is not None and values and abs(fmean(values) - case.recorded_grade) > SAME:
            changed.append((case, case.recorded_grade, fmean(values)))
    return sorted(changed, key=lambda change: change[1] - change[2])


def print_changes(changed: Sequence[tuple[GradingCase, float, float]], num_known: int, console: Console) -> None:
    """Print the cases whose grade changed. The middle of a long list is omitted.

    `num_known` is the number of cases with a recorded grade.
    """
    if not num_known:
        return
    console.print(f"{len(changed):,} of {num_known:,} grades changed", highlight=False)
    if not changed:
        return
    table = Table(title="changed grades", title_justify="left")
    for name in ("before", "now", "change"):
        table.add_column(name, justify="right")
    for name in ("row", "file and line", "trace"):
        table.add_column(name, overflow="fold")
    half = SHOWN_CHANGES // 2
    ends = [list(changed)] if len(changed) <= SHOWN_CHANGES else [list(changed[:half]), list(changed[-half:])]
    for number, end in enumerate(ends):
        if number:
            table.add_row("…", "…", "…", f"{len(changed) - 2 * half:,} between", "", "")
        for case, before, now in end:
            texts = [Text(safe_text(text)) for text in (case.row_id, case.where, case.trace_id)]
            table.add_row(f"{before:.3f}", f"{now:.3f}", f"{now - before:+.3f}", *texts)
    console.print(table)


def print_summary(summary: GradingSummary, recorded: Sequence[float], console: Console) -> None:
    """Print a summary. `recorded` contains the earlier grades of the rollouts, if they are known."""
    total = summary.num_cases * summary.num_runs
    again = f" x {summary.num_runs} runs" if summary.num_runs > 1 else ""
    console.print(f"{summary.num_graded:,} grades of {summary.num_cases:,} rollouts{again}", highlight=False)
    if summary.num_graded:
        console.print(_distribution_table(summary))
        console.print(_histogram_table(summary))
        console.print(_details_table(summary, recorded))
    if summary.errors:
        console.print(_error_table(summary, total))
    if summary.noise is not None:
        noise = summary.noise
        console.print(
            f"noise: grades of the same rollout differ by {noise.mean_difference:.4g} on average; "
            f"{noise.changed_share:.1%} of {noise.num_pairs:,} pairs differ"
            + (
                f"; in {noise.num_one_graded:,} other pairs, one of the two runs failed" if noise.num_one_graded else ""
            ),
            highlight=False,
        )


# -- numbers -----------------------------------------------------------------------------------------------------------


def _count_bins(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> tuple[tuple[float, float, int], ...]:
    low, high = float(values.min()), float(values.max())
    if high - low < SAME:
        return ((low, high, len(values)),)
    counts, edges = np.histogram(values, bins=BINS)
    return tuple((float(a), float(b), int(n)) for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True))


def _group_errors(errors: Iterable[RftError]) -> dict[str, tuple[int, tuple[str, ...]]]:
    by_name: dict[str, list[str]] = {}
    for error in errors:
        by_name.setdefault(error_name(error), []).append(error.message)
    ordered = sorted(by_name.items(), key=lambda pair: -len(pair[1]))
    return {name: (len(texts), tuple(dict.fromkeys(texts))[:SHOWN_ERRORS]) for name, texts in ordered}


def _measure_noise(runs: Sequence[Sequence[Grade | RftError]]) -> GradingNoise:
    pairs = [pair for one, other in combinations(runs, 2) for pair in zip(one, other, strict=True)]
    both = [(a.value, b.value) for a, b in pairs if isinstance(a, Grade) and isinstance(b, Grade)]
    differences = [abs(a - b) for a, b in both]
    return GradingNoise(
        num_pairs=len(both),
        mean_difference=fmean(differences) if differences else float("nan"),
        changed_share=fmean(d > SAME for d in differences) if differences else float("nan"),
        num_one_graded=sum(isinstance(a, Grade) is not isinstance(b, Grade) for a, b in pairs),
    )


# -- tables ------------------------------------------------------------------------------------------------------------


def _distribution_table(summary: GradingSummary) -> Table:
    table = Table(title="grades", title_justify="left")
    names = {0.0: "min", 0.5: "median", 1.0: "max"}
    for name in ("mean", *(names.get(q, f"{q:.0%}") for q in QUANTILES), "pass rate"):
        table.add_column(name, justify="right")
    table.add_row(f"{summary.mean:.3f}", *(f"{q:.3f}" for q in summary.quantiles), f"{summary.pass_rate:.1%}")
    return table


def _histogram_table(summary: GradingSummary) -> Table:
    table = Table.grid(padding=(0, 2))
    highest = max(count for *_, count in summary.bins)
    for low, high, count in summary.bins:
        span = f"{low:.3f}" if high - low < SAME else f"{low:.3f} .. {high:.3f}"
        table.add_row(span, "█" * max(round(BAR_WIDTH * count / highest), count > 0), f"{count:,}")
    return table


def _details_table(summary: GradingSummary, recorded: Sequence[float]) -> Table:
    table = Table.grid(padding=(0, 2))
    rows = [(f"mean of {part}", f"{mean:.3f}") for part, mean in summary.scores.items()]
    rows += [(f"guard {guard} tripped", f"{count:,}") for guard, count in summary.guards.items()]
    rows += (
        [("mean of the held-out grader", f"{summary.held_out_mean:.3f}")] if summary.held_out_mean is not None else []
    )
    rows += [("held-out grader failed", f"{summary.held_out_failures:,}")] if summary.held_out_failures else []
    rows += [(f"tokens of {model}", f"{count:,}") for model, count in summary.judge_tokens.items()]
    rows += [("mean of the recorded grades", f"{fmean(recorded):.3f}")] if recorded else []
    for name, value in rows:
        table.add_row(Text(safe_text(name)), value)
    return table


def _error_table(summary: GradingSummary, total: int) -> Table:
    table = Table(title="no grade", title_justify="left")
    table.add_column("kind")
    table.add_column("count", justify="right")
    table.add_column("share", justify="right")
    table.add_column("for example", overflow="fold")
    for name, (count, examples) in summary.errors.items():
        table.add_row(name, f"{count:,}", f"{count / total:.1%}", Text(safe_text("\n".join(examples))))
    return table
