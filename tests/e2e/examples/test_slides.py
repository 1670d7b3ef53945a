"""The example of slides, nightly: real steps of its small job, with its renderer, and the pictures of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_rft.cluster.records.run_folder import RunFolder
from examples.common.way import listening
from examples.slides.render import Chromium
from examples.slides.server import make_app
from tests.e2e.command import processes_left, run
from tests.support.browser import program
from tests.support.example_jobs import CONTEXT, write_step_job
from tests.support.paths import ROOT
from tests.support.tiny_model import write_tiny_model

EXAMPLE = ROOT / "examples" / "slides"


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_small_job_takes_a_real_step_and_its_decks_have_a_page(tmp_path: Path) -> None:
    job = write_step_job(EXAMPLE, tmp_path)
    model = write_tiny_model(tmp_path / "model", CONTEXT)

    with listening(make_app(Chromium(program()))) as url:
        environment = {**os.environ, "SLIDES_URL": url, "SLIDES_MODEL": str(model)}
        done = run("train", job, "--run-folder", tmp_path / "run", environment=environment)
    assert done.returncode == 0, done.stdout
    first, *_ = RunFolder(tmp_path / "run").metrics()
    assert first["grad_norm"] > 0
    assert first["held_out_grade_mean"] == 0
    command = [sys.executable, "-m", "examples.slides.pictures", str(tmp_path / "run"), "--name", "step-1"]
    shown = subprocess.run([*command, "--out", str(tmp_path / "pictures.html")], cwd=ROOT, text=True)
    assert shown.returncode == 0
    assert "step-1: 0 decks" in (tmp_path / "pictures.html").read_text()
    assert processes_left() == []
