"""HTML page of a comparison, and an image of the page that Chromium renders. The page needs no network or script."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from agent_rft.cluster.views.comparison import comparison_charts
from agent_rft.cluster.views.comparison.comparison_charts import (
    make_curves,
    make_histogram,
    make_interval_bar,
    make_scatter,
)
from agent_rft.cluster.views.comparison.comparison_stats import (
    CALL_CHANGE_LABELS,
    REWARD_CHANGE_LABELS,
    EvaluationComparison,
)
from agent_rft.cluster.views.comparison.comparison_table import describe_left_out, measure_lines, tool_path
from agent_rft.cluster.views.pages import load_page_template
from agent_rft.cluster.views.traces import call_note, cut, split_reasoning, summarize_rollout
from agent_rft.errors import UserError
from agent_rft.rows.durable_write import write_durably

SHOWN_ROWS = 1000
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
FLAGS = (
    *("--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
FUNCTIONS = {
    **{"said": split_reasoning, "cut": cut, "facts": summarize_rollout, "call_note": call_note, "path_of": tool_path},
    **{
        "interval_bar": make_interval_bar,
        "c": comparison_charts,
        "REWARD": REWARD_CHANGE_LABELS,
        "CALLS": CALL_CHANGE_LABELS,
    },
}
RENDER_S = 120
PNG_WIDTH = 1240


def write_page(comparison: EvaluationComparison, path: Path, *, with_traces: bool = True) -> None:
    """Write the HTML page of a comparison atomically.

    Raises:
        UserError: The file cannot be written.
    """
    rows = sorted(comparison.rows, key=lambda row: row.change("reward", len(comparison.sides) - 1))
    html = load_page_template("comparison", FUNCTIONS).render(
        comparison=comparison,
        left_out=list(describe_left_out(comparison)),
        measures=list(measure_lines(comparison)),
        scatters=[
            make_scatter(comparison.rows, side, against.quadrants)
            for side, against in enumerate(comparison.side_comparisons, start=1)
        ],
        histograms=[make_histogram(comparison, metric) for metric in ("tool_calls", "turns")],
        learning=make_curves(comparison.sides),
        rows=rows[:SHOWN_ROWS] if with_traces else [],
        with_traces=with_traces,
    )
    try:
        write_durably(path, html.encode(errors="replace"))  # tools may answer with lone surrogates
    except OSError as error:
        raise _write_error(path, error) from error


def _write_error(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {path}: {error.strerror}; choose another file")


def write_png(comparison: EvaluationComparison, path: Path, browsers: Sequence[str] = BROWSERS) -> None:
    """Write an image of the page, rendered by the first of `browsers` that is installed. The image contains no traces.

    Raises:
        UserError: No Chromium is installed, Chromium fails, or the file cannot be written.
    """
    browser = next(filter(None, map(shutil.which, browsers)), None)
    if browser is None:
        fix = "Install Chromium, or write the page with --html, open the page in a browser and print it."
        raise UserError(f"an image needs one of these browsers, but none is installed: {', '.join(browsers)}. {fix}")
    with TemporaryDirectory() as folder:
        page, image = Path(folder) / "page.html", Path(folder) / "page.png"
        write_page(comparison, page, with_traces=False)
        command = [
            *(browser, *FLAGS, f"--user-data-dir={folder}/profile"),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # Chromium does not start as root without it
            *(f"--window-size={PNG_WIDTH},{_page_height(comparison)}", f"--screenshot={image}", page.as_uri()),
        ]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=RENDER_S)
        if not image.exists():
            raise UserError(
                f"{browser} did not render the page. Write it with --html, open it in a browser and print it."
            )
        try:
            shutil.copyfile(image, path)
        except OSError as error:
            raise _write_error(path, error) from error


def _page_height(comparison: EvaluationComparison) -> int:
    """Return the approximate height of the page in pixels."""
    sides, others = len(comparison.sides), len(comparison.side_comparisons)
    measured = len(comparison.side_comparisons[0].changes)
    tables = 40 * (measured + 3) + 120 * others * (measured > 6) + 40 * sides * len(comparison.tools) + 230 * others
    return (
        420
        + 480 * (1 + others // 2)
        + tables
        + 110 * sum(len(a.gained) + len(a.lost) for a in comparison.side_comparisons)
    )
