"""The example of software engineering, nightly: its rows are made again, and its small job takes one real step."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi import Request, Response

from cluster.records.run_folder import RunFolder
from examples.common.way import listening
from examples.swe import make_data
from examples.swe.server import make_app
from tests.e2e.command import processes_left, run
from tests.support.paths import ROOT
from tests.support.tiny_model import write_tiny_model

EXAMPLE = ROOT / "examples" / "swe"
CONTEXT = 2_048
"""Tokens: those of the tiny model are bytes."""


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_writing_the_data_reproduces_the_committed_files(tmp_path: Path) -> None:
    make_data.write_data(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in (EXAMPLE / "data").iterdir()}


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_small_job_takes_a_real_step_with_a_session_for_each_rollout(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text((ROOT / "examples/common/chat_template.jinja").read_text())
    (tmp_path / "step.jsonl").write_text((EXAMPLE / "data" / "step.jsonl").read_text())
    job: dict[str, Any] = yaml.safe_load((EXAMPLE / "job_small.yaml").read_text())
    job |= {"training_file": "step.jsonl", "test_file": "step.jsonl"}
    job["model_options"]["chat_template"] = "chat_template.jinja"
    job["cluster"] |= {"context_length": CONTEXT, "engine_cores": 1, "rank_cores": 1}
    # A random model fixes nothing: another grade tells its rollouts apart, and the example's is the held-out one.
    method = job["method"]["reinforcement"]
    method["held_out_grader"] = method["grader"]
    says_e = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "e", "operation": "like"}
    method["grader"] = says_e
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    model = write_tiny_model(tmp_path / "model", CONTEXT)
    app, asked = make_app(), Counter[str]()

    @app.middleware("http")
    async def count(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        asked[request.url.path] += 1
        return await answer(request)

    with listening(app) as url:
        environment = {**os.environ, "SWE_URL": url, "SWE_MODEL": str(model)}
        done = run("train", tmp_path / "job.yaml", "--run-folder", tmp_path / "run", environment=environment)
    assert done.returncode == 0, done.stdout
    first, *_ = RunFolder(tmp_path / "run").metrics()
    assert first["grad_norm"] > 0
    assert first["held_out_grade_mean"] == 0
    assert first["guard/tests_stay"] == 0
    # Four rows: four rollouts each for the step, and one each for the tests before and after it.
    assert asked["/session/start"] == asked["/session/end"] >= 4 * 4 + 2 * 4
    assert processes_left() == []
