"""A TMPDIR whose path is too long for sockets is replaced by a folder of our own."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_rft.actors.runtime.telemetry.temporary_folder import MAX_BYTES, short_temporary_folder
from agent_rft.errors import RftError

SLURM = "scratch/users/research/slurm_jobdir/1355700/tmp.t0016.step_extern"
LONGEST = "/rft-12345678/session_2026-01-31_12-00-00_123456_1234567/sockets/plasma_store"


@pytest.fixture(params=["TMPDIR", "RAY_TMPDIR"])
def long(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder with a long path, in an environment that names it."""
    before, chosen = dict(os.environ), tempfile.tempdir
    folder = tmp_path / SLURM
    folder.mkdir(parents=True)
    os.environ[request.param] = str(folder)
    tempfile.tempdir = None
    yield folder
    os.environ.clear()
    os.environ.update(before)
    tempfile.tempdir = chosen


def test_a_long_path_is_replaced_by_a_folder_of_this_user(long: Path) -> None:
    before, chosen = dict(os.environ), tempfile.gettempdir()
    with short_temporary_folder():
        folder = Path(os.environ["TMPDIR"])
        assert os.environ.get("RAY_TMPDIR") in (None, str(folder))
        assert tempfile.gettempdir() == str(folder)
        assert len(os.fsencode(folder)) <= MAX_BYTES and len(os.fsencode(folder) + LONGEST.encode()) <= 107
        assert (folder.stat().st_uid, stat.S_IMODE(folder.stat().st_mode)) == (os.getuid(), 0o700)
        with short_temporary_folder():  # a cluster within a cluster's command
            assert os.environ["TMPDIR"] == str(folder)
    assert (dict(os.environ), tempfile.gettempdir()) == (before, chosen)


def test_where_no_short_folder_can_be_written_the_message_says_what_to_set(long: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / f"agent-rft-{os.getuid()}").symlink_to(tmp_path)  # as another user may make it
    with (
        pytest.raises(RftError, match=rf"\({long}\): set TMPDIR to a writable folder .* {MAX_BYTES} bytes"),
        short_temporary_folder([str(tmp_path / "none"), str(foreign)]),
    ):
        pass


def test_a_short_path_stays() -> None:
    before, chosen = dict(os.environ), tempfile.tempdir
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.environ["TMPDIR"], tempfile.tempdir = folder, None
        try:
            with short_temporary_folder(()):
                assert (os.environ["TMPDIR"], tempfile.gettempdir()) == (folder, folder)
        finally:
            os.environ.clear()
            os.environ.update(before)
            tempfile.tempdir = chosen
