"""The command in a folder with a user's files that are named like our packages and dependencies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.own_modules import write_own_modules
from tests.support.paths import ROOT

SCRIPT = "import sys; sys.argv[0] = 'agent-rft'; from agent_rft.__main__ import main; main()"
JOB = "model: base\ntraining_file: rows.jsonl\nmethod: {type: supervised, supervised: {}}\n"


@pytest.mark.parametrize("program", [("-m", "agent_rft"), ("-c", SCRIPT)], ids=["module", "script"])
@pytest.mark.parametrize("command", [("--help",), ("plan", "job.yaml"), ("check", "job.yaml")], ids=lambda c: c[0])
def test_files_in_the_working_directory_are_not_imported(
    tmp_path: Path, program: tuple[str, ...], command: tuple[str, ...]
) -> None:
    """Ray puts the folder on PYTHONPATH, and Python puts it first on the path."""
    write_own_modules(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    path = os.pathsep.join([str(tmp_path), *sys.path[1:]]) + os.pathsep + str(ROOT)
    done = subprocess.run(
        [sys.executable, *program, *command], cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert "was imported" not in done.stdout + done.stderr and "Traceback" not in done.stderr
    assert done.returncode == (0 if command == ("--help",) else 2), done.stderr
    assert "Usage" in done.stdout if command == ("--help",) else "missing_model" in done.stderr
