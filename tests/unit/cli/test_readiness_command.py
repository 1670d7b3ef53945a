"""`agent-rft ready` before anything starts: what it refuses, with which exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_rft.cli.main import app
from agent_rft.cluster.checks.offline_checks import check_gradable
from agent_rft.errors import InvalidJob
from tests.support.builders import job


def test_one_draw_is_too_few_and_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({}))
    for options, named in ((["--samples", "1"], "samples"), (["--resume", str(tmp_path / "none")], "--resume")):
        result = CliRunner().invoke(app, ["ready", str(tmp_path / "job.json"), *options])
        assert result.exit_code == 2 and named in result.output


def test_a_job_without_a_grader_or_without_the_file_is_refused() -> None:
    check_gradable(job(), "training_file")
    with pytest.raises(InvalidJob) as refused:
        check_gradable(job(), "test_file")
    assert [problem.code for problem in refused.value.problems] == ["missing_file"]
    supervised = job(method={"type": "supervised", "supervised": {}})
    with pytest.raises(InvalidJob) as refused:
        check_gradable(supervised, "training_file")
    assert [problem.code for problem in refused.value.problems] == ["not_gradable"]
