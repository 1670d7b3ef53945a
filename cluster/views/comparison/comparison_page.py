"""HTML page of a comparison, without network or script, and its image rendered by an installed Chromium."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from agent_rft.cluster.views.comparison import comparison_charts
from agent_rft.cluster.views.comparison.comparison_charts import curves, histogram, interval_bar, scatter
from agent_rft.cluster.views.comparison.comparison_stats import CALLS, REWARD, EvaluationComparison
from agent_rft.cluster.views.comparison.comparison_table import left_out, measures, tool_path
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
    **{"interval_bar": interval_bar, "c": comparison_charts, "REWARD": REWARD, "CALLS": CALLS},
}
RENDER_S = 120
PNG_WIDTH = 1240


def write_page(comparison: EvaluationComparison, path: Path, *, with_traces: bool = True) -> None:
    """Write the page atomically.

    Raises:
        UserError: The file cannot be written.
    """
    rows = sorted(comparison.rows, key=lambda row: row.change("reward", len(comparison.sides) - 1))
    html = load_page_template("comparison", FUNCTIONS).render(
        comparison=comparison,
        left_out=list(left_out(comparison)),
        measures=list(measures(comparison)),
        scatters=[
            scatter(comparison.rows, side, against.quadrants)
            for side, against in enumerate(comparison.against, start=1)
        ],
        histograms=[histogram(comparison, metric) for metric in ("tool_calls", "turns")],
        learning=curves(comparison.sides),
        rows=rows[:SHOWN_ROWS] if with_traces else [],
        with_traces=with_traces,
    )
    try:
        write_durably(path, html.encode(errors="replace"))  # tools may answer with lone surrogates
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {path}: {error.strerror}; choose another file")


def write_png(comparison: EvaluationComparison, path: Path, browsers: Sequence[str] = BROWSERS) -> None:
    """Write the page without traces as an image.

    Raises:
        UserError: No Chromium is installed, Chromium fails, or the file cannot be written.
    """
    browser = next(filter(None, map(shutil.which, browsers)), None)
    if browser is None:
        fix = "Install Chromium, or open the page of --html in a browser and print it."
        raise UserError(f"an image needs one of {', '.join(browsers)}, and none is installed. {fix}")
    with TemporaryDirectory() as folder:
        page, image = Path(folder) / "page.html", Path(folder) / "page.png"
        write_page(comparison, page, with_traces=False)
        command = [
            *(browser, *FLAGS, f"--user-data-dir={folder}/profile"),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # Chromium does not start as root without it
            *(f"--window-size={PNG_WIDTH},{_height(comparison)}", f"--screenshot={image}", page.as_uri()),
        ]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=RENDER_S)
        if not image.exists():
            raise UserError(f"{browser} did not render the page. Open the page of --html in a browser and print it.")
        try:
            shutil.copyfile(image, path)
        except OSError as error:
            raise _cannot_write(path, error) from error


def _height(comparison: EvaluationComparison) -> int:
    """Return the approximate height of the page in pixels."""
    sides, others = len(comparison.sides), len(comparison.against)
    measured = len(comparison.against[0].changes)
    tables = 40 * (measured + 3) + 120 * others * (measured > 6) + 40 * sides * len(comparison.tools) + 230 * others
    return 420 + 480 * (1 + others // 2) + tables + 110 * sum(len(a.gained) + len(a.lost) for a in comparison.against)
