"""The pages that commands write, in a real browser: report, comparison and look before training, with hostile texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_rft.cluster.readiness.readiness_report import judge_samples
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.comparison.comparison_page import write_page as write_comparison
from agent_rft.cluster.views.comparison.comparison_stats import compare_evaluations
from agent_rft.cluster.views.comparison.evaluation_selection import load_evaluations
from agent_rft.cluster.views.readiness.readiness_page import write_page as write_readiness
from agent_rft.cluster.views.report.report_page import write_report
from agent_rft.types import Group
from tests.support.browser import PHONE, Watched
from tests.support.builders import group_request, job, plan, task
from tests.support.synthetic import HOSTILE, Synthetic


def report(folder: Path) -> Path:
    return write_report(Synthetic().run(folder, hostile=True))


def comparison(folder: Path) -> Path:
    Synthetic().run(folder / "run", hostile=True)
    sides = [f"{folder}/run:{name}" for name in ("test-before", "test-after")]
    write_comparison(
        compare_evaluations(load_evaluations(sides, name=None, file=None, evaluate=None), 3), folder / "page.html"
    )
    return folder / "page.html"


def readiness(folder: Path) -> Path:
    synthetic = Synthetic()
    tasks = [task(f"{number}", HOSTILE) for number in range(20)]
    groups = [
        Group(group_request(number, task=row), tuple(synthetic.rollout(row, i, 0, 0.5, HOSTILE) for i in range(8)))
        for number, row in enumerate(tasks)
    ]
    found = judge_samples(job(), plan(), tasks, groups, {}, samples=8, second_grades={}, target_s=1.0, rollout_s=0.5)
    return write_readiness(RunFolder(folder), found, job(suffix=HOSTILE[:64]))


@pytest.mark.parametrize("write", [report, comparison, readiness])
def test_a_page_fits_a_phone_loads_nothing_and_runs_no_foreign_script(
    browser: Any, tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    context = browser.new_context(viewport=PHONE)
    window = Watched(context.new_page(), "")
    window.page.goto(write(tmp_path).as_uri())
    window.page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert window.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert window.page.title() != "owned"
    context.close()
    assert window.complaints == []
