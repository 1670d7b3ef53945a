"""The example of slides, nightly: one real step of its small job, with its renderer, and the pictures of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.records.run_folder import RunFolder
from examples.common.way import listening
from examples.slides.render import Chromium
from examples.slides.server import make_app
from tests.e2e.command import processes_left, run
from tests.support.browser import program
from tests.support.paths import ROOT
from tests.support.tiny_model import write_tiny_model

EXAMPLE = ROOT / "examples" / "slides"
CONTEXT = 2_048
"""Tokens: those of the tiny model are bytes."""


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_small_job_takes_a_real_step_and_its_decks_have_a_page(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text((ROOT / "examples/common/chat_template.jinja").read_text())
    (tmp_path / "step.jsonl").write_text((EXAMPLE / "data" / "step.jsonl").read_text())
    job: dict[str, Any] = yaml.safe_load((EXAMPLE / "job_small.yaml").read_text())
    job["training_file"] = "step.jsonl"
    job["model_options"]["chat_template"] = "chat_template.jinja"
    job["cluster"] |= {"context_length": CONTEXT, "engine_cores": 1, "rank_cores": 1}
    # A random model makes no decks: another grade tells its rollouts apart, and the example's is the held-out one.
    method = job["method"]["reinforcement"]
    method["held_out_grader"] = method["grader"]
    says_e = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "e", "operation": "like"}
    method["grader"] = says_e
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    model = write_tiny_model(tmp_path / "model", CONTEXT)

    with listening(make_app(Chromium(program()))) as url:
        environment = {**os.environ, "SLIDES_URL": url, "SLIDES_MODEL": str(model)}
        done = run("train", tmp_path / "job.yaml", "--run-folder", tmp_path / "run", environment=environment)
    assert done.returncode == 0, done.stdout
    first, *_ = RunFolder(tmp_path / "run").metrics()
    assert first["grad_norm"] > 0
    assert first["held_out_grade_mean"] == 0
    command = [sys.executable, "-m", "examples.slides.pictures", str(tmp_path / "run"), "--name", "step-1"]
    shown = subprocess.run([*command, "--out", str(tmp_path / "pictures.html")], cwd=ROOT, text=True)
    assert shown.returncode == 0
    assert "step-1: 0 decks" in (tmp_path / "pictures.html").read_text()
    assert processes_left() == []
