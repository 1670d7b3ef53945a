"""Folder for temporary files: TMPDIR, or a folder with a shorter path if TMPDIR is too long for Unix sockets."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_rft.errors import RftError

MAX_BYTES = 30
"""Maximum length of the folder's path in bytes.

With this limit, all socket paths in the folder have at most 107 bytes, the limit of Linux. The longest socket path is
the path of Ray's object store, started by `agent-rft serve`:
/rft-12345678/session_2026-01-31_12-00-00_123456_1234567/sockets/plasma_store."""
SHORT = ("/tmp", "/var/tmp", "/dev/shm")
VARIABLES = ("TMPDIR", "RAY_TMPDIR")
"""Environment variables that set the socket folder of a local cluster. RAY_TMPDIR takes precedence."""


@contextmanager
def short_temporary_folder(parents: Sequence[str] = SHORT) -> Iterator[None]:
    """Context manager in which temporary files of this process and its child processes have short paths.

    Uses TMPDIR if it is short enough, else a permanent folder that all runs of the user share. This folder is created
    in the first writable folder of `parents`.

    Raises:
        RftError: TMPDIR is too long, and no other folder is writable.
    """
    before = {name: value for name in VARIABLES if (value := os.environ.get(name))}
    chosen = tempfile.gettempdir()
    if all(len(os.fsencode(path)) <= MAX_BYTES for path in (chosen, *before.values())):
        yield
        return
    folder = str(_create_short_folder(parents, before.get("RAY_TMPDIR") or before.get("TMPDIR") or chosen))
    # Also for this process, so that all processes of a node write metrics to the same folder.
    os.environ |= {"TMPDIR": folder} | dict.fromkeys(before, folder)
    tempfile.tempdir = folder
    try:
        yield
    finally:
        os.environ.pop("TMPDIR")
        os.environ |= before
        tempfile.tempdir = chosen


def _create_short_folder(parents: Sequence[str], too_long: str) -> Path:
    for parent in parents:
        with suppress(OSError):
            folder = Path(parent) / f"agent-rft-{os.getuid()}"
            create_private_folder(folder)
            return folder
    fix = f"set TMPDIR to a writable folder whose path has at most {MAX_BYTES} bytes"
    raise RftError(f"the path of the temporary folder is too long for Unix sockets ({too_long}): {fix}")


def create_private_folder(folder: Path) -> None:
    """Create a folder that only this user can access, if it is missing.

    Raises:
        OSError: The folder belongs to another user, or cannot be created.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
