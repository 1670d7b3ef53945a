"""Who may enter the server's folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agent_rft.errors import UserError
from agent_rft.serve.stores.database import make_private

MARKERS = ("secret.key",)
OTHER = os.geteuid() + 1
"""The user who runs the server, where the folder belongs to us."""


def mode_of(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def folder_with(path: Path, mode: int, *files: str) -> Path:
    path.mkdir()
    for name in files:
        (path / name).touch()
    path.chmod(mode)
    return path


def test_a_new_folder_is_its_owners(tmp_path: Path) -> None:
    make_private(tmp_path / "a" / "b", MARKERS)
    assert mode_of(tmp_path / "a" / "b") == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o750, 0o2775, 0o1777])
def test_a_folder_of_ours_is_closed(tmp_path: Path, mode: int) -> None:
    for folder in (folder_with(tmp_path / "empty", mode), folder_with(tmp_path / "state", mode, "secret.key", "x")):
        make_private(folder, MARKERS)
        assert mode_of(folder) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o2770, 0o750, 0o700])
@pytest.mark.parametrize("user", [None, OTHER])
def test_a_folder_that_a_group_may_enter_is_used_as_it_is(tmp_path: Path, mode: int, user: int | None) -> None:
    """As a volume with an fsGroup, which belongs to root, or a folder with other things in it."""
    folder = folder_with(tmp_path / "volume", mode, "lost+found")
    make_private(folder, MARKERS, user)
    assert mode_of(folder) == mode


@pytest.mark.parametrize(("mode", "user"), [(0o755, OTHER), (0o2775, OTHER), (0o1777, OTHER), (0o755, None)])
def test_a_folder_that_everybody_may_enter_is_an_error_with_its_owner_and_mode(
    tmp_path: Path, mode: int, user: int | None
) -> None:
    folder = folder_with(tmp_path / "home", mode, "letters.txt")
    with pytest.raises(UserError, match=rf"user {os.geteuid()}\) and has mode {mode:04o}\. .*chmod 700 {folder}"):
        make_private(folder, MARKERS, user)
    assert mode_of(folder) == mode
