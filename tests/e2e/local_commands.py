"""Every command of the command line that needs no server, as a process of its own on the folder of a finished run."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from agent_rft.cluster.records.run_folder import RunFolder
from tests.e2e.client_commands import Commands, all_commands
from tests.e2e.client_commands import documented as documented_of_server

EXCEPTIONS = {
    ("train",): "test_main_job.py runs it, stops it and resumes it",
    ("eval",): "test_main_job.py runs it on a checkpoint",
    ("check",): "test_bad_input.py runs it on a job with mistakes, test_wheel.py on one without",
    ("traces",): "test_main_job.py runs it on a rollout",
    ("explain",): "test_api.py runs it as the runbook does",
    ("serve",): "test_api.py runs it",
    ("init",): "test_wheel.py runs it, and the lines that it prints",
    ("import", "openai"): "tests/integration/cli/test_import_command.py runs it",
    ("models", "doctor"): "tests/unit/cli/test_doctor.py runs it",
    ("models", "template"): "tests/unit/cli/test_doctor.py runs it",
    ("models", "merge"): "needs an adapter; tests/unit/actors/weights/test_adapter_merge.py merges one",
}
"""Local commands without a call below, with the reason."""
READY_ROWS = 2


def documented() -> set[tuple[str, ...]]:
    """Return the commands that call no server."""
    return all_commands() - documented_of_server()


def call_all(commands: Commands, run: Path, job: Path, folder: Path) -> None:
    """Run each command once.

    Args:
        commands: Runs them with the variables of the job, and records which.
        run: The folder of a finished run of the job, with its test file graded before and after training.
        job: The job's file; its tools and grader answer.
        folder: An empty folder.
    """
    call = commands.run
    assert json.loads(call("plan", job, "--json"))
    compared = json.loads(call("compare", f"{run}:test-before", f"{run}:test-after", "--json"))
    graded = RunFolder(run).evaluations()["test-after"].num_rollouts
    assert len(compared["rows"]) == graded
    grades = call("grade", run, "--name", "test-after", "--grader", job, "--json").splitlines()
    assert len(grades) == graded
    call("observe", "--out", folder / "watch")
    assert (folder / "watch" / "alerts.yml").exists()
    found = json.loads(
        call("ready", _short(job, folder), "--samples", "2", "--runs", folder / "runs", "--json", code=4)
    )
    assert found["verdict"] == "fix_first" and len(found["rows"]) == READY_ROWS
    assert json.loads(call("schema", "job"))["properties"]


def _short(job: Path, folder: Path) -> Path:
    """Write a job with a few rows of another, for a command that starts an engine."""
    raw: dict[str, Any] = yaml.safe_load(job.read_text())
    with (job.parent / raw["training_file"]).open() as file:
        (folder / "rows.jsonl").write_text("".join(islice(file, READY_ROWS)))
    raw |= {"training_file": "rows.jsonl", "validation_file": None, "test_file": None}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path
