"""The real packages of trackers: offline, and with servers that do not answer. `make nightly` installs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

PACKAGES = ROOT / "build/trackers"
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def run(folder: Path, *how: str) -> dict[str, Any]:
    path = os.pathsep.join([str(ROOT), str(PACKAGES)])
    command = [sys.executable, "-m", "tests.support.tracked_run", str(folder), *how]
    environment = os.environ | {"PYTHONPATH": path, "HOME": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_run_and_its_resumption_are_in_the_files_of_all_trackers(tmp_path: Path) -> None:
    first, both = run(tmp_path), run(tmp_path, "again")
    expected = [[step, pytest.approx(step / 10)] for step in range(1, 7)]
    assert first["failed"] == both["failed"] == {}
    for tracker in ("tensorboard", "mlflow", "wandb"):
        assert (first[tracker], both[tracker]) == (expected[:3], expected), tracker


def test_servers_that_do_not_answer_end_their_trackers_and_nothing_else(tmp_path: Path) -> None:
    found = run(tmp_path, "unreachable")
    assert found["failed"].keys() == {"wandb", "mlflow"}
    assert "0" * 40 not in str(found["failed"])
    assert len(found["tensorboard"]) == 3
