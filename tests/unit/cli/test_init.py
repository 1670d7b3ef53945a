"""Projects that `agent-rft init` writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit

import pytest
from typer.testing import CliRunner

from agent_rft.cli.main import app
from agent_rft.cli.projects.example_project import PROJECTS, write_project
from agent_rft.cli.reference.editor_schemas import editor_schema
from agent_rft.errors import UserError
from agent_rft.spec.job_file import load_job
from agent_rft.spec.operator.operator_file import load_operator
from tests.support.paths import LEDGER

TOKEN = 'headers: {Authorization: "Bearer ${LEDGER_TOKEN}"}'


@pytest.mark.parametrize("example", list(PROJECTS))
def test_a_project_is_complete_and_the_next_steps_are_lines_to_copy(example: str, tmp_path: Path) -> None:
    folder = tmp_path / "my shop"
    result = CliRunner().invoke(app, ["init", str(folder), "--example", example])
    assert result.exit_code == 0
    lines = [line.strip() for line in result.output.splitlines()]
    assert f"cd '{folder}'" in lines
    (server,) = [line for line in lines if line.endswith(PROJECTS[example].server_arguments)]
    assert server.startswith(f"cd '{folder}' && ")
    assert any(line.endswith("agent-rft check job.yaml") for line in lines)
    job = load_job(folder / "job.yaml", {})
    commands = [line.split("agent-rft ")[1] for line in lines if "agent-rft " in line and "job.yaml" in line]
    assert commands == ["check job.yaml", "ready job.yaml", "train job.yaml --run-folder runs/first"]
    assert (job.test_file is not None) == PROJECTS[example].has_test
    compares = "compare runs/first:test-before runs/first:test-after" in lines[-1]
    assert compares == PROJECTS[example].has_test, "the last line compares the test rows, if there are any"
    assert job.training_file and Path(job.training_file).is_relative_to(folder)
    assert PROJECTS[example].server_arguments in (folder / "README.md").read_text()
    check_schema(folder / "job.yaml", "job")
    assert not (folder / "agent-rft.yaml").exists(), "commands on this machine need none"
    for file in folder.rglob("*.py"):
        assert "examples." not in file.read_text(), "a project imports nothing from the examples"


def check_schema(file: Path, name: str) -> None:
    """Check that editors find the schema that the first line of a project's file names."""
    first, _ = file.read_text().split("\n", 1)
    path = first.removeprefix("# yaml-language-server: $schema=")
    assert json.loads((file.parent / path).read_text()) == editor_schema(name)


@pytest.mark.parametrize("example", list(PROJECTS))
def test_project_for_serve_allows_exactly_the_ports_of_its_server(example: str, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    result = CliRunner().invoke(app, ["init", str(folder), "--example", example, "--serve"])
    assert result.exit_code == 0
    ports = set(re.findall(r"127\.0\.0\.1:\d+", (folder / "job.yaml").read_text()))
    assert ports == {str(entry) for entry in load_operator(None, folder).allowed_networks} != set()
    check_schema(folder / "agent-rft.yaml", "operator")


def test_the_ledgers_project_has_the_examples_job_at_ports_of_its_own(tmp_path: Path) -> None:
    CliRunner().invoke(app, ["init", str(tmp_path)])
    ours, theirs = (tmp_path / "job.yaml").read_text(), (LEDGER / "job.yaml").read_text()
    assert TOKEN in ours, "it says how a token is given"
    theirs = theirs.replace(f", {TOKEN}", "").replace("${LEDGER_TOOLS_URL}", "http://127.0.0.1:8701")
    theirs = theirs.replace("${LEDGER_GRADER_URL}", "http://127.0.0.1:8702")
    theirs = theirs.replace("../../docs/reference/schemas", "schemas")
    assert [line for line in ours.splitlines() if not line.startswith("    #")] == theirs.splitlines()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("mine")
    for taken in (tmp_path, tmp_path / "job.yaml"):
        error = CliRunner().invoke(app, ["init", str(taken)]).exception
        assert isinstance(error, UserError) and "give a folder that does not exist yet" in str(error)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_a_project_that_could_not_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="File name too long"):
        write_project(tmp_path / "a" / ("x" * 300), "ledger")
    full = tmp_path / "full"
    size = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (20_000, size[1]))  # larger files fail as on a full disk, after some were written
    try:
        with pytest.raises(UserError, match="cannot be read or written: File too large"):
            write_project(full, "ledger")
    finally:
        setrlimit(RLIMIT_FSIZE, size)
    assert list(full.iterdir()) == []
    write_project(full, "ledger")
