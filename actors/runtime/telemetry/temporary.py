"""The folder for temporary files: one of our own if TMPDIR is too long for the paths of Unix sockets."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_rft.errors import RftError

MAX_BYTES = 30
"""A socket's path has at most 107 bytes. The longest below our folder is that of Ray's object store, where
`agent-rft serve` has its cluster: /rft-12345678/session_2026-01-31_12-00-00_123456_1234567/sockets/plasma_store."""
SHORT = ("/tmp", "/var/tmp", "/dev/shm")
VARIABLES = ("TMPDIR", "RAY_TMPDIR")
"""Both decide where a local cluster has its sockets; the second one wins."""


@contextmanager
def short_temporary_folder(short: Sequence[str] = SHORT) -> Iterator[None]:
    """Context manager in which temporary files of this process and its child processes have short paths.

    Their folder is TMPDIR, or else one of this user, which the user's runs share and which stays.

    Raises:
        RftError: TMPDIR is too long, and no other folder can be written.
    """
    before = {name: value for name in VARIABLES if (value := os.environ.get(name))}
    chosen = tempfile.gettempdir()
    if all(len(os.fsencode(path)) <= MAX_BYTES for path in (chosen, *before.values())):
        yield
        return
    folder = str(_own_folder(short, before.get("RAY_TMPDIR") or before.get("TMPDIR") or chosen))
    # The process's own choice, too: metrics of all processes of a node go to the same place.
    os.environ |= {"TMPDIR": folder} | dict.fromkeys(before, folder)
    tempfile.tempdir = folder
    try:
        yield
    finally:
        os.environ.pop("TMPDIR")
        os.environ |= before
        tempfile.tempdir = chosen


def _own_folder(short: Sequence[str], too_long: str) -> Path:
    for parent in short:
        with suppress(OSError):
            folder = Path(parent) / f"agent-rft-{os.getuid()}"
            make_own_folder(folder)
            return folder
    remedy = f"set TMPDIR to a folder of at most {MAX_BYTES} characters that you can write"
    raise RftError(f"the path of the temporary folder is too long for Unix sockets ({too_long}): {remedy}")


def make_own_folder(folder: Path) -> None:
    """Create the folder if it is missing.

    Raises:
        OSError: It belongs to another user, or cannot be created or written.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
