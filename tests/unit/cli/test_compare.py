"""`agent-rft compare` as a command: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_rft.cli.main import app
from agent_rft.errors import UserError
from tests.support.synthetic import Synthetic


@pytest.fixture
def run(tmp_path: Path) -> str:
    return str(Synthetic().run(tmp_path / "run").path)


def test_before_and_after_are_compared_as_text_page_and_json(run: str, tmp_path: Path) -> None:
    sides, page = [f"{run}:test-before", f"{run}:test-after"], tmp_path / "page.html"
    told = CliRunner().invoke(app, ["compare", *sides, "--html", str(page)])
    assert told.exit_code == 0 and "8 rows, each compared across the evaluations" in told.output
    assert f"written to {page}" in told.output.replace("\n", "") and "</html>" in page.read_text()
    found = json.loads(CliRunner().invoke(app, ["compare", *sides, "--json"]).stdout)
    assert [side["name"] for side in found["sides"]] == ["test-before", "test-after"]
    assert len(found["rows"]) == 8 and found["changes"][0]["measures"]["turns"]["change"] < 0


def test_a_wanted_latency_shows_the_share_of_slower_rollouts(run: str) -> None:
    sides = [f"{run}:test-before", f"{run}:test-after"]
    told = CliRunner().invoke(app, ["compare", *sides, "--target-latency", "0"])
    assert told.exit_code == 0 and "slower" in told.output
    found = json.loads(CliRunner().invoke(app, ["compare", *sides, "--target-latency", "1e6", "--json"]).stdout)
    slow = found["changes"][0]["measures"]["slow_share"]
    assert (slow["before"], slow["after"], slow["change"]) == (0.0, 0.0, 0.0)


def test_one_side_or_a_job_without_the_file_is_refused(run: str, tmp_path: Path) -> None:
    alone = CliRunner().invoke(app, ["compare", run])
    assert alone.exit_code == 2 and "give two or more" in alone.output
    (tmp_path / "train.jsonl").write_text("")
    job = tmp_path / "job.json"
    grader = {"type": "string_check", "input": "a", "reference": "b", "operation": "eq"}
    method = {"type": "reinforcement", "reinforcement": {"grader": grader}}
    job.write_text(json.dumps({"model": "m", "training_file": "train.jsonl", "method": method}))
    error = CliRunner().invoke(app, ["compare", run, run, "--job", str(job)]).exception
    assert isinstance(
        error, UserError
    ) and "does not set test_file; set test_file, or choose another file with --file" in str(error)
