from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster.ray_cluster.session import MARK, end_leftover


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """It stands for a process of the cluster whose folder is `rft-x`."""
    environment = {MARK: str(tmp_path / "rft-x")}
    with subprocess.Popen(["/bin/cat"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        # Popen returns a moment before the system shows the new program's environment; a program that answers has it.
        process.stdin.write(b"there?\n")
        process.stdin.flush()
        process.stdout.readline()
        yield process
        process.kill()


def leave(note: Path, owner_created: float, folder: Path) -> None:
    folder.mkdir()
    note.write_text(json.dumps({"owner": [os.getpid(), owner_created], "folder": str(folder)}))


def test_what_a_killed_server_left_is_ended_and_its_folder_goes(
    tmp_path: Path, orphan: subprocess.Popen[bytes]
) -> None:
    leave(tmp_path / "note", 1.0, tmp_path / "rft-x")  # a process of our number, but of another time
    end_leftover(tmp_path / "note")
    assert not psutil.pid_exists(orphan.pid)
    assert not (tmp_path / "rft-x").exists()


def test_nothing_is_taken_from_an_owner_that_lives(tmp_path: Path, orphan: subprocess.Popen[bytes]) -> None:
    leave(tmp_path / "note", psutil.Process().create_time(), tmp_path / "rft-x")
    end_leftover(tmp_path / "note")
    assert orphan.poll() is None and (tmp_path / "rft-x").exists()


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"owner": [1]}'])
def test_a_note_that_was_not_finished_is_none(tmp_path: Path, text: str) -> None:
    end_leftover(tmp_path / "no note")
    (tmp_path / "note").write_text(text)
    end_leftover(tmp_path / "note")


def test_other_clusters_and_folders_that_are_none_stay(tmp_path: Path, orphan: subprocess.Popen[bytes]) -> None:
    for name in ("rft-y", "home"):
        leave(tmp_path / "note", 1.0, tmp_path / name)
        end_leftover(tmp_path / "note")
    assert orphan.poll() is None
    assert (tmp_path / "home").exists()
