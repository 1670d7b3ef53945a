"""Every command of the command line that talks to a server, as a process of its own against a running one."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from agent_rft.cli.main import app
from tests.e2e.command import AGENT_RFT
from tests.support.paths import ROOT

GROUPS = ("files", "jobs", "events", "checkpoints", "models", "keys", "audit")
LOCAL = {("models", "doctor"), ("models", "template"), ("models", "merge")}
"""Commands of these groups that read folders and call no server."""
EXCEPTIONS = {
    ("keys", "rotate-master"): "needs a stopped server; tests/unit/cli/api_commands/test_key_commands.py runs it",
}
"""Commands of servers without a call below, with the reason."""
STATES = r"validating_files|queued|running|paused|succeeded|failed|cancelled"
WAIT_S = 120.0


def all_commands() -> set[tuple[str, ...]]:
    """Return the words of each command, from Typer's own tree."""
    tree: Any = typer.main.get_command(app)
    return {
        (name, *inner)
        for name, command in tree.commands.items()
        for inner in ([(one,) for one in command.commands] if hasattr(command, "commands") else [()])
    }


def documented() -> set[tuple[str, ...]]:
    """Return the commands that use a server or its folder."""
    return {command for command in all_commands() if command[0] in GROUPS} - LOCAL


class Commands:
    """Runs `agent-rft` in an environment; `seen` are the commands that ended with the expected exit code."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._all = all_commands()
        self.seen: set[tuple[str, ...]] = set()

    def run(self, *words: str | Path, code: int = 0) -> str:
        """Run a command to its end and return its output."""
        arguments = tuple(map(str, words))
        ended = subprocess.run(
            [AGENT_RFT, *arguments], env=self._environment, capture_output=True, text=True, timeout=WAIT_S
        )
        assert ended.returncode == code, f"{words}: {ended.stdout}{ended.stderr}"
        assert "Traceback" not in ended.stderr
        self.seen |= {arguments[:1], arguments[:2]} & self._all
        return ended.stdout.strip()

    def lines(self, *words: str | Path) -> Iterator[dict[str, Any]]:
        """Run a command with --json and yield its lines."""
        yield from map(json.loads, self.run(*words, "--json").splitlines())

    def wait_for(self, job_id: str, state: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while f'"{state}"' not in self.run("jobs", "get", job_id, "--json"):
            assert time.monotonic() < deadline
            time.sleep(0.5)


RUNBOOK = ROOT / "k8s" / "monitoring" / "RUNBOOK.md"
TOO_LONG = {"train": "it resumes a job"}
"""Commands of the runbook that are not run here, with the reason."""


def call_runbook(commands: Commands, state: Path, job_id: str) -> None:
    """Run each command of the runbook on a finished job of the server whose folder is `state`."""
    values = {"RUN": str(state / "runs" / job_id), "JOB": job_id, "step-N": "step-000001"}
    values["CODE"] = "missing_variable"
    found = set(re.findall(r"`agent-rft ([^`]+)`", RUNBOOK.read_text()))
    assert len(found) >= 6
    for words in map(str.split, sorted(found)):
        if words[0] not in TOO_LONG:
            assert commands.run(*(values.get(word, word) for word in words))


def call_all(
    commands: Commands, state: Path, job_id: str, checkpoint: str, request: dict[str, Any], folder: Path
) -> None:
    """Run each command once.

    Args:
        commands: Runs them, and records which.
        state: The server's folder.
        job_id: A finished job.
        checkpoint: The model of a checkpoint of the job, which is deleted.
        request: A valid request for a job, whose files are uploaded already.
        folder: An empty folder.
    """
    run = commands.run
    (folder / "rows.jsonl").write_text('{"messages": []}\n')
    file_id = run("files", "upload", folder / "rows.jsonl")
    assert file_id in {file["id"] for file in commands.lines("files", "list")}
    run("files", "download", file_id, folder / "copy.jsonl")
    assert (folder / "copy.jsonl").read_text() == '{"messages": []}\n'
    run("files", "delete", file_id)

    assert job_id in {job["id"] for job in commands.lines("jobs", "list")}
    assert "succeeded" in run("jobs", "get", job_id)
    assert "successfully completed" in run("jobs", "follow", job_id)
    assert run("jobs", "log", job_id)
    assert "successfully completed" in run("events", "list", job_id)
    assert [one["step_number"] for one in commands.lines("checkpoints", "list", job_id)]
    (folder / "request.json").write_text(json.dumps(request))
    made = re.findall(r"ftjob-\w+", run("jobs", "create", folder / "request.json"))[0]
    commands.wait_for(made, "running")
    for action, status in (("pause", "paused"), ("resume", "queued"), ("cancel", "cancelled")):
        assert re.search(STATES, run("jobs", action, made))
        assert status in run("jobs", "get", made) or action == "resume"

    assert checkpoint in {model["id"] for model in commands.lines("models", "list")}
    run("models", "delete", checkpoint)

    own = ("--folder", state)
    key = run("keys", "create", "of a command", *own)
    assert "sk-rft-" in key
    (found,) = (one for one in commands.lines("keys", "list", *own) if one["name"] == "of a command")
    run("keys", "revoke", found["id"], *own)
    assert "key.revoke" in run("audit", "list", "--action", "key.revoke", *own)
