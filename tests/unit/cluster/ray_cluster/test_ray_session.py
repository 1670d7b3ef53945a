from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agent_rft.cluster.ray_cluster.ray_session import CLUSTER_VARIABLE, kill_leftover_cluster, worker_environment


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands in for one of the cluster whose folder is `rft-x`."""
    environment = {CLUSTER_VARIABLE: str(tmp_path / "rft-x")}
    with subprocess.Popen(["/bin/cat"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        # Popen returns before /proc shows the new program's environment; once the program answers, it is there.
        process.stdin.write(b"there?\n")
        process.stdin.flush()
        process.stdout.readline()
        yield process
        process.kill()


def write_note(note: Path, owner_created: float, folder: Path) -> None:
    folder.mkdir()
    note.write_text(json.dumps({"owner": [os.getpid(), owner_created], "folder": str(folder)}))


def test_what_a_killed_server_left_is_killed_and_its_folder_deleted(
    tmp_path: Path, orphan: subprocess.Popen[bytes]
) -> None:
    write_note(tmp_path / "note", 1.0, tmp_path / "rft-x")  # our own PID, but another creation time
    kill_leftover_cluster(tmp_path / "note")
    assert not psutil.pid_exists(orphan.pid)
    assert not (tmp_path / "rft-x").exists()


def test_the_cluster_of_a_live_owner_is_left_alone(tmp_path: Path, orphan: subprocess.Popen[bytes]) -> None:
    write_note(tmp_path / "note", psutil.Process().create_time(), tmp_path / "rft-x")
    kill_leftover_cluster(tmp_path / "note")
    assert orphan.poll() is None and (tmp_path / "rft-x").exists()


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"owner": [1]}'])
def test_a_missing_or_incomplete_note_is_ignored(tmp_path: Path, text: str) -> None:
    kill_leftover_cluster(tmp_path / "no note")
    (tmp_path / "note").write_text(text)
    kill_leftover_cluster(tmp_path / "note")


def test_other_clusters_and_folders_that_are_not_a_clusters_are_left_alone(
    tmp_path: Path, orphan: subprocess.Popen[bytes]
) -> None:
    for name in ("rft-y", "home"):
        write_note(tmp_path / "note", 1.0, tmp_path / name)
        kill_leftover_cluster(tmp_path / "note")
    assert orphan.poll() is None
    assert (tmp_path / "home").exists()


def test_only_workers_of_a_submitted_folder_need_a_hook() -> None:
    def of(runtime_env: object) -> object:
        return worker_environment({"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": runtime_env})})

    assert worker_environment({}) is of(None) is of({"env_vars": {"A": "b"}}) is None
    assert of({"working_dir": "gcs://package.zip"}) is not None
