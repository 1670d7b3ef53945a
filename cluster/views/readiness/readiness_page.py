"""HTML page with the variance plot (`readiness.html`) and JSON (`readiness.json`) of a readiness check.

The page needs no network and no script. All text from rows is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from agent_rft.cluster.readiness.readiness_report import Readiness
from agent_rft.cluster.readiness.row_signal import RowSignal
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.live_view import format_duration
from agent_rft.cluster.views.pages import load_page_template
from agent_rft.problems.readiness_reasons import REASONS
from agent_rft.rows.durable_write import write_durably
from agent_rft.spec.job import JobSpec

TITLES = {"train": "Ready to train", "fix_first": "Fix this first", "sft_warm_up": "Do an SFT warm-up first"}
SHOWN_ROWS = 500
"""Maximum rows in the table; the JSON has all rows."""
MAX_MARKS = 600
"""Maximum rows in the plot. If there are more rows, it shows every n-th row."""
WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 1120, 320, 44, 16, 26, 10


@dataclass(frozen=True, slots=True)
class RowMark:
    """Mark for one row in the variance plot. All numbers are pixel coordinates.

    `low` and `high` are one standard deviation below and above the mean, but never outside the observed rewards.
    """

    x: float
    mean: float
    low: float
    high: float
    best: float
    title: str


@dataclass(frozen=True, slots=True)
class VariancePlot:
    """Variance plot with one mark per row, ordered by mean reward from left to right. `ticks` are pairs (y, label)."""

    marks: tuple[RowMark, ...]
    ticks: tuple[tuple[float, str], ...]
    best_line: str
    mean_line: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT


def readiness_page_path(folder: Path) -> Path:
    return folder / "readiness.html"


def write_page(run: RunFolder, found: Readiness, job: JobSpec) -> Path:
    """Write the HTML page and the JSON of a readiness check, each atomically; return the path of the page.

    Raises:
        OSError: The disk is full or read-only.
    """
    write_durably(run.owner_folder / "readiness.json", json.dumps(found.as_json(), indent=1).encode())
    html = load_page_template("readiness", {"with_code": _with_code}).render(
        title=job.suffix or run.path.name,
        heading=TITLES[found.verdict],
        found=found,
        reasons=[(entry, REASONS[entry.reason]) for entry in found.reasons],
        plot=make_variance_plot(found.rows),
        rows=found.rows[:SHOWN_ROWS],
        took=None if found.estimate.sampling_s is None else format_duration(found.estimate.sampling_s),
    )
    page = readiness_page_path(run.owner_folder)
    write_durably(page, html.encode("utf-8", errors="replace"))  # a row may have lone surrogates
    return page


def make_variance_plot(rows: Sequence[RowSignal]) -> VariancePlot | None:
    """Return the variance plot, or None if there are no rows."""
    if not rows:
        return None
    shown = rows[:: -(-len(rows) // MAX_MARKS)]
    lowest, highest = min(0.0, *(row.worst for row in rows)), max(1.0, *(row.best for row in rows))

    def y(value: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (highest - value) / (highest - lowest), 1)

    step = (WIDTH - LEFT - RIGHT) / len(shown)
    marks = tuple(
        RowMark(
            x=round(LEFT + step * (number + 0.5), 1),
            mean=y(row.mean),
            low=y(max(row.worst, row.mean - row.deviation)),
            high=y(min(row.best, row.mean + row.deviation)),
            best=y(row.best),
            title=f"line {row.line}: mean {row.mean:.2f} ± {row.deviation:.2f}, best {row.best:.2f} of {row.graded}",
        )
        for number, row in enumerate(shown)
    )
    ticks = tuple((y(value), f"{value:.2g}") for value in (lowest + (highest - lowest) * i / 4 for i in range(5)))
    return VariancePlot(
        marks,
        ticks,
        best_line=" ".join(f"{mark.x},{mark.best}" for mark in marks),
        mean_line=" ".join(f"{mark.x},{mark.mean}" for mark in marks),
    )


def _with_code(text: str) -> Markup:
    """Convert text to HTML; text between backticks becomes code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(p) if i % 2 else escape(p) for i, p in enumerate(parts))
