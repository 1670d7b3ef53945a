"""The report is written while a run goes, rarely, and never while the last one is still being written."""

from __future__ import annotations

import sys
from pathlib import Path

from agent_rft.cluster.run.sinks.report_writer import MIN_EVERY_S, ReportWriter
from agent_rft.events import Notice, StepDone
from tests.support.events import run_event
from tests.support.synthetic import Synthetic

STEP = run_event(StepDone(step=1, total_steps=2, metrics={"step": 1.0}))
APPEND = "import sys; open(sys.argv[1] + '/written', 'a').write('x')"


def writer(folder: Path, now: list[float], script: str = APPEND) -> ReportWriter:
    return ReportWriter(folder, (sys.executable, "-c", script), lambda: now[0])


def test_a_step_writes_the_report_and_the_next_ones_only_after_a_rest(tmp_path: Path) -> None:
    now = [0.0]
    made = writer(tmp_path, now)
    made.handle_event(run_event(Notice(text="no step")))
    for at in (0.0, MIN_EVERY_S - 1, MIN_EVERY_S):
        now[0] = at
        made.handle_event(STEP)
        made.wait()
    assert (tmp_path / "written").read_text() == "xx"


def test_a_report_that_is_being_written_is_ended_with_the_run(tmp_path: Path) -> None:
    made = writer(tmp_path, [0.0], "import time; time.sleep(600)")
    made.handle_event(STEP)
    made.handle_event(STEP)
    made.close()
    made.wait()


def test_the_real_report_of_a_run_in_progress_is_written(tmp_path: Path, synthetic: Synthetic) -> None:
    run = synthetic.run(tmp_path, steps=2)
    made = ReportWriter(tmp_path)
    made.handle_event(STEP)
    made.wait()
    assert "This run is not complete" in run.report_file.read_text()
