from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster.ray_session import end_leftover


@pytest.fixture
def head() -> Iterator[subprocess.Popen[bytes]]:
    """It stands for Ray's head."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def identity(pid: int) -> tuple[int, float]:
    return pid, psutil.Process(pid).create_time()


def leave(note: Path, owner: tuple[int, float], head: int, folder: Path) -> None:
    folder.mkdir()
    note.write_text(json.dumps({"owner": owner, "head": identity(head), "folder": str(folder)}))


def test_what_a_killed_server_left_is_ended_and_its_folder_goes(tmp_path: Path, head: subprocess.Popen[bytes]) -> None:
    gone = psutil.Process().pid, 1.0  # a process of our number, but of another time
    leave(tmp_path / "note", gone, head.pid, tmp_path / "rft-x")
    end_leftover(tmp_path / "note")
    assert not psutil.pid_exists(head.pid)
    assert not (tmp_path / "rft-x").exists()


def test_nothing_is_taken_from_an_owner_that_lives(tmp_path: Path, head: subprocess.Popen[bytes]) -> None:
    leave(tmp_path / "note", identity(psutil.Process().pid), head.pid, tmp_path / "rft-x")
    end_leftover(tmp_path / "note")
    assert head.poll() is None and (tmp_path / "rft-x").exists()


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"owner": [1]}'])
def test_a_note_that_was_not_finished_is_none(tmp_path: Path, text: str) -> None:
    end_leftover(tmp_path / "no note")
    (tmp_path / "note").write_text(text)
    end_leftover(tmp_path / "note")


def test_no_folder_but_one_of_ours_is_taken_away(tmp_path: Path, head: subprocess.Popen[bytes]) -> None:
    leave(tmp_path / "note", (psutil.Process().pid, 1.0), head.pid, tmp_path / "home")
    end_leftover(tmp_path / "note")
    assert (tmp_path / "home").exists()
