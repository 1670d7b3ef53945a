"""The example of software engineering, nightly: its rows are made again, and its small job takes one real step."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fastapi import Request, Response

from agent_rft.cluster.records.run_folder import RunFolder
from examples.common.way import listening
from examples.swe import make_data
from examples.swe.server import make_app
from tests.e2e.command import processes_left, run
from tests.support.example_jobs import CONTEXT, write_step_job
from tests.support.paths import ROOT
from tests.support.tiny_model import write_tiny_model

EXAMPLE = ROOT / "examples" / "swe"


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_writing_the_data_reproduces_the_committed_files(tmp_path: Path) -> None:
    make_data.write_data(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in (EXAMPLE / "data").iterdir()}


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_small_job_takes_a_real_step_with_a_session_for_each_rollout(tmp_path: Path) -> None:
    job = write_step_job(EXAMPLE, tmp_path, test_file="step.jsonl")
    model = write_tiny_model(tmp_path / "model", CONTEXT)
    app, asked = make_app(), Counter[str]()

    @app.middleware("http")
    async def count(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        asked[request.url.path] += 1
        return await answer(request)

    with listening(app) as url:
        environment = {**os.environ, "SWE_URL": url, "SWE_MODEL": str(model)}
        done = run("train", job, "--run-folder", tmp_path / "run", environment=environment)
    assert done.returncode == 0, done.stdout
    first, *_ = RunFolder(tmp_path / "run").metrics()
    assert first["grad_norm"] > 0
    assert first["held_out_grade_mean"] == 0
    assert "guard/tests_stay" not in first  # it counts the rollouts that the guard stopped
    # Four rows: four rollouts each for the step, and one each for the tests before and after it.
    assert asked["/session/start"] == asked["/session/end"] >= 4 * 4 + 2 * 4
    assert processes_left() == []
