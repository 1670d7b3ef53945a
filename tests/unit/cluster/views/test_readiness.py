"""The page, its JSON and the terminal: complete, escaped, and of runs without anything to draw, too."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from rich.console import Console

from agent_rft.cluster.readiness.readiness_report import Readiness, judge_samples
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.readiness.readiness_page import (
    MAX_MARKS,
    make_variance_plot,
    readiness_page_path,
    write_page,
)
from agent_rft.cluster.views.readiness.readiness_text import print_readiness
from tests.support.builders import group, group_request, job, plan, task

HOSTILE = "<script>alert('x')</script> & [bold]"


def found(*grades: Sequence[float | None]) -> Readiness:
    tasks = [task(f"{i}-x", f"{HOSTILE} {i}", reference=i) for i, _ in enumerate(grades, 1)]
    groups = [group(group_request(i, task=t), row) for i, (t, row) in enumerate(zip(tasks, grades, strict=True))]
    return judge_samples(job(), plan(), tasks, groups, {}, samples=4, second_grades={}, target_s=1.0, rollout_s=0.5)


def test_the_page_has_the_verdict_the_plot_and_each_row_and_no_text_of_a_row_as_markup(tmp_path: Path) -> None:
    findings = found(*[[0.0, 0.0, 1.0, 1.0]] * 18, [1.0] * 4, [0.0] * 4)
    assert write_page(RunFolder(tmp_path), findings, job(suffix="<b>mine</b>")) == readiness_page_path(tmp_path)
    html = readiness_page_path(tmp_path).read_text()
    assert '<h1 class="train">Ready to train</h1>' in html and "&lt;b&gt;mine" in html
    assert "<script" not in html and html.count("&lt;script&gt;") == 20
    svg = ET.fromstring(html[html.index("<svg") : html.index("</svg>") + len("</svg>")])
    assert len(svg.findall("circle")) == 20 and len(svg.findall("polyline")) == 2
    assert json.loads((tmp_path / "readiness.json").read_text())["verdict"] == "train"


def test_a_run_without_a_grade_has_a_page(tmp_path: Path) -> None:
    write_page(RunFolder(tmp_path), found([None] * 4), job())
    assert "Fix this first" in readiness_page_path(tmp_path).read_text()


def test_the_plot_is_bounded_and_its_marks_lie_within_it() -> None:
    rows = found(*[[0.0, 1.0, -2.0, 3.0]] * 20).rows
    plot = make_variance_plot(rows * 100)
    assert plot is not None and 0 < len(plot.marks) <= MAX_MARKS
    for mark in plot.marks:
        assert 0 <= mark.best <= mark.high <= mark.mean <= mark.low <= plot.height and plot.left < mark.x < plot.width


def test_the_terminal_shows_the_verdict_its_fixes_and_the_figures() -> None:
    out = io.StringIO()
    print_readiness(Console(file=out, width=120, color_system=None), found(*[[0.0] * 4] * 3))
    text = out.getvalue()
    few = "the training file has only 3 different questions [too_few_rows]"
    assert text.startswith(f"Fix this first (fix_first)\n- {few}\n")
    assert "all wrong" in text and "pass@k: 1: 0.00" in text and "estimated training run: 6 steps" in text
